"""The caller: finds who offers a capability, asks, and goes elsewhere when that is safe (REG-4, TOOL-5)."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from bus.broker.connection import Connection
from bus.broker.store import store
from bus.broker.wire import header_block, publish_command
from bus.calls.asked import REQUEST_TYPE, RESULT_TYPE, Asked
from bus.calls.attributes import call_attributes
from bus.calls.card import is_wanted
from bus.calls.directory import Directory
from bus.calls.draft import CallDraft
from bus.calls.gate import Gate
from bus.calls.index import Offer
from bus.calls.letters import letter, moment
from bus.calls.selection import suitable
from bus.calls.watch import Watch
from bus.contracts.result import Result
from bus.envelope import Envelope, codec, dedupe_header, instant, new_message_id, new_trace_id, versions
from bus.errors import BusError, ErrorInfo, error
from bus.telemetry.context import TraceContext
from bus.telemetry.spans import Span, SpanKind, Telemetry
from bus.trust import budget
from bus.trust.accounts import Accounts
from bus.workflow.artifacts import Artifacts
from bus.workflow.recording import RECORDED, call_recorded
from bus.workflow.references import DATA_REF, refer, restore

log = logging.getLogger("bus.calls")

IN_FLIGHT = 64
MAX_ATTEMPTS = 20
BACKOFF_S = 0.05
# After a broker's restart its clients come back within this time, in any order.
RETURN_S = 3.0
RECORD_S = 5.0


class Caller:
    """Calls capabilities over one connection. Safe to use from many tasks."""

    def __init__(self, connection: Connection, telemetry: Telemetry, name: str) -> None:
        self.directory = Directory(connection)
        self.accounts = Accounts(connection)
        self._connection = connection
        self._telemetry = telemetry
        self._name = name
        self._artifacts = Artifacts(connection)
        self._inline_limit = connection.settings.inline_limit
        self._watch = Watch(connection, self.directory, name)
        self._gates: dict[str, Gate] = {}
        self._turn = random.randrange(1 << 16)
        self._reconnected_at = float("-inf")
        connection.on_reconnect(self._reconnected)

    async def call(
        self,
        capability: str,
        arguments: Any = None,
        *,
        cause: Envelope | None = None,
        parent: TraceContext | None = None,
        **options: Any,
    ) -> Result:
        """Calls and returns the result; raises the error of a failed one. Options are the fields of `CallDraft`."""
        result = await self.ask(CallDraft(capability, arguments, **options), cause=cause, parent=parent)
        result.unwrap()
        return result

    async def ask(
        self, draft: CallDraft, *, cause: Envelope | None = None, parent: TraceContext | None = None
    ) -> Result:
        """Calls and returns the result, also a failed one; `cause` is the message or call that is being handled.

        It ends by the deadline of the draft, of the card, or of the cause, whichever comes first. Cancelled, it tells
        the callee. Raises ValueError for a draft that could never be sent.
        """
        _check(draft)
        began, code = time.perf_counter(), "tool.cancelled"
        try:
            result = await self._ask(draft, cause, parent)
            code = "" if result.error is None else result.error.code
            return result
        finally:
            self._telemetry.metrics.calls.asked(draft.capability, code, time.perf_counter() - began)

    async def _ask(self, draft: CallDraft, cause: Envelope | None, parent: TraceContext | None) -> Result:
        call_id = draft.id or new_message_id()
        started = time.monotonic()
        try:
            offers = await self._offers(draft)
            if cause is not None and "budget" in cause.extensions:
                await self.accounts.spend(cause, calls=1)
        except BusError as problem:
            return Result.of_error(problem.info, tool_call_id=call_id)
        deadline = started + self._timeout_s(draft, offers, cause)
        trace_id = cause.trace_id if cause is not None else new_trace_id()
        arguments = draft.to_json()
        if draft.validate and (breach := self._breach(offers[0], arguments)) is not None:
            return Result.of_error(breach, tool_call_id=call_id)
        asked = Asked(call_id, draft.capability, arguments, draft.version, draft.repairs_left, draft.max_result_bytes)
        span = self._telemetry.start(
            lambda: f"call {draft.capability}",
            SpanKind.CLIENT,
            trace_id=trace_id,
            parent=parent,
            sampling_key=_workflow(draft, cause) or trace_id,
            attributes=lambda: call_attributes(self._name, asked, None),
        )
        try:
            result = await self._persist(draft, asked, offers, deadline, trace_id, span, cause)
            if result.error is not None:
                span.fail(result.error.code, result.error.message)
            if cause is not None and cause.extensions.get(RECORDED):
                await self._record(cause, asked, result)
            return result
        finally:
            span.end()

    async def ask_many(
        self,
        drafts: Sequence[CallDraft],
        *,
        cause: Envelope | None = None,
        parent: TraceContext | None = None,
        in_flight: int = IN_FLIGHT,
    ) -> dict[str, Result]:
        """Makes several calls at once, `in_flight` at a time; the results by the id of the draft, or its index as text.

        Every draft has a result, also when it failed. Raises ValueError for two drafts with one id.
        """
        ids = [draft.id or str(index) for index, draft in enumerate(drafts)]
        if len(set(ids)) < len(ids):
            raise ValueError("two calls have the same id; results could not be told apart")
        for draft in drafts:
            _check(draft)
        results: dict[str, Result] = {}
        waiting = iter(zip(ids, drafts, strict=True))

        async def work() -> None:
            for id, draft in waiting:
                results[id] = await self.ask(draft, cause=cause, parent=parent)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(in_flight, len(ids))):
                group.create_task(work())
        return {id: results[id] for id in ids}

    async def notify(
        self, draft: CallDraft, *, cause: Envelope | None = None, parent: TraceContext | None = None
    ) -> str:
        """Calls without waiting for a result, and nobody tells whether it arrived; returns the call's id.

        Raises RegistryError when nobody offers the capability, and BrokerError.
        """
        _check(draft)
        offers = await self._offers(draft)
        if cause is not None and "budget" in cause.extensions:
            await self.accounts.spend(cause, calls=1)
        self._turn += 1
        offer = offers[self._turn % len(offers)]
        trace_id = cause.trace_id if cause is not None else new_trace_id()
        deadline = time.monotonic() + self._timeout_s(draft, offers, cause)
        asked = Asked(draft.id or new_message_id(), draft.capability, draft.to_json(), draft.version)
        subject, data = await self._compose(draft, asked, offer, deadline, trace_id, cause)
        headers = header_block(parent.to_headers()) if parent is not None else b""
        await self._connection.send(publish_command(subject, "", headers, data))
        return asked.tool_call_id

    async def close(self) -> None:
        """Ends what watches over calls; a second call does nothing."""
        await self._watch.close()
        await self.directory.close()

    # -- one call --

    async def _offers(self, draft: CallDraft) -> list[Offer]:
        """Who may be asked. Raises RegistryError and BrokerError."""
        timeout_s = draft.timeout_s or self._connection.settings.call_timeout_s
        await self.directory.ready(timeout_s)
        found = suitable(self.directory.index, draft)
        if isinstance(found, BusError):
            # Who has just registered may not be in the index yet.
            await self.directory.settle()
            found = suitable(self.directory.index, draft)
            if isinstance(found, BusError):
                raise found
        return found

    async def _persist(
        self,
        draft: CallDraft,
        asked: Asked,
        offers: list[Offer],
        deadline: float,
        trace_id: str,
        span: Span,
        cause: Envelope | None,
    ) -> Result:
        """Asks one after another, as long as it is safe and there is time."""
        self._turn += 1
        left = sorted(offers, key=lambda offer: offer.agent) if len(offers) > 1 else offers
        left = left[self._turn % len(left) :] + left[: self._turn % len(left)]
        retries, attempt = draft.retries, 0
        busy: Result | None = None
        while True:
            attempt += 1
            offer = left[0]
            result = await self._attempt(draft, asked, offer, deadline, trace_id, span, cause)
            info = result.error
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
            elif started and info.retryable and retries > 0 and self._is_safe(draft, offer, cause):
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

    async def _record(self, cause: Envelope, asked: Asked, result: Result) -> None:
        """Keeps what a call was answered, for a replay; a broker that cannot store it fails no call."""
        said = call_recorded(cause, self._name, asked.tool_name, asked.arguments, result.to_payload())
        subject = self._connection.subjects.event(self._name, cause.workflow_id, said.type)
        headers = {"Nats-Msg-Id": dedupe_header(said.sender, said.message_id)}
        try:
            await store(self._connection, subject, said.encode(), headers, timeout_s=RECORD_S)
        except BusError as problem:
            log.warning("a call of %s is not recorded for replays: %s", asked.tool_name, problem.info.message)

    async def _attempt(
        self,
        draft: CallDraft,
        asked: Asked,
        offer: Offer,
        deadline: float,
        trace_id: str,
        span: Span,
        cause: Envelope | None,
    ) -> Result:
        flight = self._watch.begin(offer.agent, asked.tool_call_id)
        try:
            subject, data = await self._compose(draft, asked, offer, deadline, trace_id, cause)
            headers = header_block(span.context.to_headers()) if span.context is not None else b""
            await self._connection.wait_connected(max(0.0, deadline - time.monotonic()))
            message = await self._connection.request(
                subject, data, headers=headers, timeout_s=max(0.0, deadline - time.monotonic()), flight=flight
            )
            # On an inbox that only this call knows; of the envelope's fields these three are looked at.
            answer = codec.parse(message.data)
            versions.check(answer)
            if answer.get("type") != RESULT_TYPE:
                raise error("protocol.malformed", f"{offer.agent} answered with another type", path="type")
            payload = answer.get("payload")
            if DATA_REF in (answer.get("extensions") or ()):
                payload = (await restore(Envelope.from_fields(answer), self._artifacts)).payload
            return Result.from_payload(payload)
        except asyncio.CancelledError:
            await asyncio.shield(self._watch.cancel(offer.agent, asked.tool_call_id))
            raise
        except BusError as problem:
            info = self._meaning(problem.info, offer, asked, deadline)
            if info.code == "tool.timeout":
                await self._watch.cancel(offer.agent, asked.tool_call_id)
            return Result.of_error(info, tool_call_id=asked.tool_call_id, meta={"tool_name": asked.tool_name})
        finally:
            self._watch.end(flight)

    async def _compose(
        self,
        draft: CallDraft,
        asked: Asked,
        offer: Offer,
        deadline: float,
        trace_id: str,
        cause: Envelope | None,
    ) -> tuple[str, bytes]:
        extensions: dict[str, Any] = budget.inherit(cause, self._name) if cause is not None else {}
        extensions["budget"] = {**extensions.get("budget", {}), "deadline_at": moment(deadline - time.monotonic())}
        key = draft.idempotency_key or (draft.derived_key if not offer.card.idempotent else None)
        if key is not None:
            extensions["idempotency_key"] = key
        fields, data = letter(
            sender=self._name,
            to=offer.agent,
            type=REQUEST_TYPE,
            trace_id=trace_id,
            workflow_id=_workflow(draft, cause),
            session_id=draft.session_id or (cause.session_id if cause is not None else None),
            role="assistant",
            extensions=extensions,
            payload=asked.to_payload(),
        )
        if len(data) > self._inline_limit:
            left_s = max(0.1, deadline - time.monotonic())
            whole = Envelope.from_fields(fields)
            data = (await refer(whole, self._artifacts, over_bytes=self._inline_limit, timeout_s=left_s)).encode()
        return self._connection.subjects.call(offer.agent, self._name, asked.tool_name), data

    def _meaning(self, info: ErrorInfo, offer: Offer, asked: Asked, deadline: float) -> ErrorInfo:
        """What an error of the broker says about the call."""
        reason = info.details.get("reason")
        if info.code != "broker.unavailable" or reason is None:
            return info
        if reason == "no_responders":
            return error(
                "agent.unavailable",
                f"{offer.agent} is registered for {asked.tool_name}, but nobody answers; has it died?",
                started=False,
            ).info
        if reason == "timeout" or time.monotonic() >= deadline:
            return error(
                "tool.timeout", f"{offer.agent} did not answer {asked.tool_name} in time; it may still have run"
            ).info
        return error(
            "broker.unavailable",
            f"the link to the broker broke while {offer.agent} had the call of {asked.tool_name}; it may have run",
            reason=reason,
        ).info

    def _timeout_s(self, draft: CallDraft, offers: Iterable[Offer], cause: Envelope | None) -> float:
        timeout_s = draft.timeout_s
        if timeout_s is None:
            timeout_s = max(self._connection.settings.call_timeout_s, *(offer.card.timeout_s for offer in offers))
        inherited = (cause.extensions.get("budget") or {}).get("deadline_at") if cause is not None else None
        if inherited is None:
            return timeout_s
        return min(timeout_s, max(0.0, (instant(inherited) - datetime.now(UTC)).total_seconds()))

    def _is_safe(self, draft: CallDraft, offer: Offer, cause: Envelope | None) -> bool:
        """Whether a second run does no harm."""
        return offer.card.idempotent or draft.idempotency_key is not None or draft.derived_key is not None

    def _may_return(self) -> bool:
        return time.monotonic() - self._reconnected_at < RETURN_S

    def _breach(self, offer: Offer, arguments: Any) -> ErrorInfo | None:
        """What is wrong with the arguments by the card, as far as this side can say."""
        gate = self._gates.get(offer.card.digest)
        if gate is None:
            try:
                gate = Gate(offer.card.input_schema, "arguments")
            except ValueError:
                return None  # Somebody else's schema; the callee has the last word.
            self._gates[offer.card.digest] = gate
        if gate.is_valid(arguments):
            return None
        problems = gate.problems(arguments)
        told = "; ".join(f"{one['path']}: {one['problem']}" for one in problems[:5])
        return error(
            "tool.validation_failed",
            f"the arguments of {offer.card.name} are wrong: {told}",
            errors=problems,
            schema=dict(offer.card.input_schema),
            started=False,
        ).info

    def _reconnected(self) -> None:
        self._reconnected_at = time.monotonic()


def _check(draft: CallDraft) -> None:
    if draft.timeout_s is not None and draft.timeout_s <= 0:
        raise ValueError(f"timeout_s is {draft.timeout_s}, it must be above 0")
    for name, text, limit in (
        ("id", draft.id, 128),
        ("workflow_id", draft.workflow_id, 128),
        ("session_id", draft.session_id, 128),
        ("idempotency_key", draft.idempotency_key, 256),
    ):
        if text is not None and not 0 < len(text) <= limit:
            raise ValueError(f"{name} of a call has 1 to {limit} characters")
    if draft.version is not None and not is_wanted(draft.version):
        raise ValueError(f"version is {draft.version!r}, it must be such as 1, 1.2 or 1.2.3")


def _workflow(draft: CallDraft, cause: Envelope | None) -> str | None:
    return draft.workflow_id or (cause.workflow_id if cause is not None else None)
