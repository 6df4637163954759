"""Attempts: one call asked of one agent after another, as long as that is safe and there is time (TOOL-5)."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from bus.broker.connection import Connection
from bus.broker.parser import Arrival
from bus.broker.wire import header_block
from bus.calls.asked import REQUEST_TYPE, RESULT_TYPE, Asked
from bus.calls.draft import CallDraft
from bus.calls.index import Offer
from bus.calls.letters import letter
from bus.calls.meaning import meaning
from bus.calls.tasks.submission import TASK_ID
from bus.calls.watch import Watch
from bus.calls.witness import Witness
from bus.contracts.result import Result
from bus.envelope import Envelope, codec, timestamps, versions
from bus.errors import BusError, error
from bus.telemetry.spans import Span
from bus.trust import budget
from bus.workflow.artifacts import Artifacts
from bus.workflow.references import DATA_REF, refer, restore

MAX_ATTEMPTS = 20
BACKOFF_S = 0.05
# After a broker's restart its clients come back within this time, in any order.
RETURN_S = 3.0


class Attempts:
    """What goes out and comes back for the calls of one connection."""

    def __init__(self, connection: Connection, watch: Watch, name: str, witness: Witness) -> None:
        self._connection = connection
        self._watch = watch
        self._name = name
        self._witness = witness
        self._artifacts = Artifacts(connection)
        self._inline_limit = connection.settings.inline_limit
        self._reconnected_at = float("-inf")
        connection.on_reconnect(self._reconnected)

    async def attempt(
        self,
        draft: CallDraft,
        asked: Asked,
        offer: Offer,
        deadline: float,
        trace_id: str,
        span: Span,
        cause: Envelope | None,
    ) -> Result:
        """Asks one agent once. Cancelled, it tells the callee."""
        answer, is_answered = None, False
        try:
            subject, data = self._compose(draft, asked, offer, deadline, trace_id, cause)
            if len(data) > self._inline_limit:
                data = await self._refer(data, deadline)
            headers = span.headers()
            if not self._connection.is_connected:
                await self._connection.wait_connected(max(0.0, deadline - time.monotonic()))
            answer = self._connection.ask(
                subject,
                data,
                headers=header_block(headers) if headers else b"",
                timeout_s=max(0.0, deadline - time.monotonic()),
            )
            self._watch.begin(answer, offer.agent, asked.tool_call_id)
            arrival = await answer
            is_answered = True
            fields = _result_fields(arrival, offer)
            payload = fields.get("payload")
            if DATA_REF in (fields.get("extensions") or ()):
                payload = (await restore(Envelope.from_fields(fields), self._artifacts)).payload
            return Result.from_payload(payload)
        except asyncio.CancelledError:
            await asyncio.shield(self._watch.cancel(offer.agent, asked.tool_call_id))
            raise
        except BusError as problem:
            info = meaning(problem.info, offer.agent, asked.tool_name, deadline)
            if info.code == "tool.timeout":
                await self._watch.cancel(offer.agent, asked.tool_call_id)
            elif not is_answered:
                self._witness.unsent(draft, asked.tool_call_id, info, agent=offer.agent, cause=cause, trace_id=trace_id)
            return Result.of_error(info, tool_call_id=asked.tool_call_id, meta={"tool_name": asked.tool_name})
        finally:
            if answer is not None:
                self._watch.end(answer)

    async def persist(
        self,
        result: Result,
        draft: CallDraft,
        asked: Asked,
        left: list[Offer],
        deadline: float,
        trace_id: str,
        span: Span,
        cause: Envelope | None,
    ) -> Result:
        """After a first attempt with this result, asks on as long as it is safe and there is time."""
        retries, attempt = draft.retries, 1
        busy: Result | None = None
        while True:
            offer, info = left[0], result.error
            if info is None or attempt >= MAX_ATTEMPTS:
                return result
            span.event("attempt_failed", {"error.type": info.code, "bus.callee": offer.agent})
            started = info.details.get("started", True) is not False
            pause_s = 0.0
            if not started and info.code == "registry.no_common_version":
                pass  # An older or newer replica of the same agent took it; the next may be another one.
            elif not started and len(left) > 1:
                left = left[1:]
            elif not started and info.code == "agent.unavailable" and self._may_return():
                pause_s = BACKOFF_S * 2 ** min(attempt, 4)
            elif started and info.retryable and retries > 0 and self._is_safe(draft, asked, offer):
                retries -= 1
                left = left[1:] + left[:1]
                pause_s = (info.retry_after_ms or 0) / 1000 or BACKOFF_S * 2 ** min(attempt, 6)
            else:
                return busy or result
            # To be busy is the better news, should all the others be away.
            busy = result if info.code == "agent.busy" else busy
            pause_s *= random.uniform(0.5, 1.0)
            if time.monotonic() + pause_s >= deadline:
                return result
            if pause_s:
                await asyncio.sleep(pause_s)
            attempt += 1
            result = await self.attempt(draft, asked, left[0], deadline, trace_id, span, cause)

    async def request(
        self,
        draft: CallDraft,
        asked: Asked,
        offer: Offer,
        deadline: float,
        trace_id: str,
        cause: Envelope | None,
    ) -> tuple[str, bytes]:
        """The subject and the bytes of a request, however large its arguments are."""
        subject, data = self._compose(draft, asked, offer, deadline, trace_id, cause)
        return subject, data if len(data) <= self._inline_limit else await self._refer(data, deadline)

    def _compose(
        self,
        draft: CallDraft,
        asked: Asked,
        offer: Offer,
        deadline: float,
        trace_id: str,
        cause: Envelope | None,
    ) -> tuple[str, bytes]:
        extensions: dict[str, Any] = budget.inherit(cause, self._name) if cause is not None else {}
        if cause is not None:
            extensions[budget.COURSE] = extensions["causation_id"]
        limits = {"deadline_at": timestamps.now(deadline - time.monotonic())}
        extensions["budget"] = {**extensions["budget"], **limits} if "budget" in extensions else limits
        key = draft.idempotency_key or (draft.derived_key if not offer.card.idempotent else None)
        if key is not None:
            extensions["idempotency_key"] = key
        if cause is not None and TASK_ID in cause.extensions:
            extensions[TASK_ID] = cause.extensions[TASK_ID]
        _, data = letter(
            sender=self._name,
            to=offer.agent,
            type=REQUEST_TYPE,
            trace_id=trace_id,
            workflow_id=draft.workflow(cause),
            session_id=draft.session_id or (cause.session_id if cause is not None else None),
            role="assistant",
            extensions=extensions,
            payload=asked.to_payload(),
        )
        return self._connection.subjects.call(offer.agent, self._name, asked.tool_name), data

    async def _refer(self, data: bytes, deadline: float) -> bytes:
        """The request with its arguments by reference."""
        left_s = max(0.1, deadline - time.monotonic())
        whole = Envelope.decode(data)
        return (await refer(whole, self._artifacts, over_bytes=self._inline_limit, timeout_s=left_s)).encode()

    def _is_safe(self, draft: CallDraft, asked: Asked, offer: Offer) -> bool:
        """Whether a second run does no harm. That of a stream would tell its chunks a second time."""
        if asked.streams:
            return False
        return offer.card.idempotent or draft.idempotency_key is not None or draft.derived_key is not None

    def _may_return(self) -> bool:
        return time.monotonic() - self._reconnected_at < RETURN_S

    def _reconnected(self) -> None:
        self._reconnected_at = time.monotonic()


def _result_fields(message: Arrival, offer: Offer) -> dict[str, Any]:
    """The fields of an answer. It came on an inbox that only this call knows, so three of them are looked at."""
    fields = codec.parse(message.data)
    versions.check(fields)
    if fields.get("type") != RESULT_TYPE:
        raise error("protocol.malformed", f"{offer.agent} answered with another type", path="type")
    return fields
