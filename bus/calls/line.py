"""The line that every call takes through its callee, each stage once, in this order.

decode, identity, budget, capability, checks, gate 1, idempotency key, handler, gate 2, stored under its key, reply.
Stages never call each other. What a capability raises is caught here and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from bus.broker.connection import Connection
from bus.broker.parser import Arrival
from bus.calls.asked import RESULT_TYPE, Asked
from bus.calls.attributes import tool_attributes
from bus.calls.call import Call, Publish
from bus.calls.capability import Capability
from bus.calls.card import Card
from bus.calls.cut import cut
from bus.calls.gate import nearest
from bus.calls.letters import letter
from bus.calls.replays import Claim, Replays
from bus.contracts.result import Result
from bus.envelope import Envelope, instant, is_agent_name, new_trace_id
from bus.errors import BusError, ErrorInfo, Rejected, error
from bus.telemetry.context import TraceContext
from bus.telemetry.logs import InHand, in_hand, take_in_hand, tell_answered
from bus.telemetry.spans import Span, SpanKind, Telemetry
from bus.telemetry.told import contained, told, told_with_trace
from bus.trust import budget
from bus.workflow.artifacts import Artifacts
from bus.workflow.calling import Calling
from bus.workflow.references import DATA_REF, refer, restore

log = logging.getLogger("bus.calls")

REFER_TIMEOUT_S = 5.0

Check = Callable[[Asked, Envelope, Card], Awaitable[None]]
"""Whether a call may be made: awaited before its arguments are looked at, raises the BusError that refuses it."""


class Taken:
    """One call in hand. `ended` is why it was cancelled from outside; the capability sees a cancellation."""

    __slots__ = ("asked", "ended", "ends_at", "envelope", "lines", "message", "task")

    def __init__(self, message: Arrival) -> None:
        self.message = message
        self.envelope: Envelope | None = None
        self.asked: Asked | None = None
        self.ends_at = float("inf")
        self.ended: ErrorInfo | None = None
        self.task: asyncio.Task[None] | None = None
        self.lines: InHand | None = None

    def end(self, why: ErrorInfo) -> None:
        """Cancels what runs for it; a second call asks again, the first reason stays."""
        self.ended = self.ended or why
        if self.task is not None:
            self.task.cancel()

    def leave(self) -> None:
        """Its task is done with it, and the task's log lines are no longer about it."""
        self.task = None
        if self.lines is not None:
            in_hand.reset(self.lines)
            self.lines = None


class Line:
    """Answers the calls of one agent."""

    def __init__(
        self,
        connection: Connection,
        telemetry: Telemetry,
        *,
        agent: str,
        instance: str,
        capabilities: Mapping[str, Capability],
        checks: Sequence[Check],
        caller: Calling,
        publish: Publish,
    ) -> None:
        self._connection = connection
        self._telemetry = telemetry
        self._agent = agent
        self._capabilities = capabilities
        self._checks = checks
        self._caller = caller
        self._publish = publish
        self._artifacts = Artifacts(connection)
        self._replays = Replays(connection, agent, instance)
        self._max_hops = connection.settings.max_hops
        self._inline_limit = connection.settings.inline_limit

    async def answer(self, taken: Taken) -> bytes | None:
        """Takes one call from its bytes to the bytes of its result; None when nobody could read an answer.

        Cancelled without a reason in `taken.ended`, it raises; the caller of the call then hears nothing.
        """
        started = time.perf_counter()
        span = None
        meta: dict[str, Any] = {}
        failure: ErrorInfo | None = None
        data = None
        try:
            try:
                self.read(taken)
            finally:
                span = self._open_span(taken)
                if taken.envelope is not None:
                    taken.lines = take_in_hand(taken.envelope, self._agent, span, {})
            data = await self._work(taken, span, meta)
        except asyncio.CancelledError:
            if taken.ended is None:
                raise
            _take_back_cancellation()
            failure = taken.ended
        except BusError as problem:
            failure = problem.info
        except TimeoutError:
            failure = error("tool.timeout", f"{_name(taken)} ran into a timeout of its own").info
        except Exception as problem:
            log.error("%s: %s failed: %s", self._agent, _name(taken), told_with_trace(problem), extra=_ids(taken))
            failure = error("tool.execution_failed", f"{_name(taken)} failed: {told(problem)}").info
        finally:
            if span is not None and failure is None:
                span.end()
        meta["elapsed_ms"] = round((seconds := time.perf_counter() - started) * 1000, 3)
        self._telemetry.metrics.calls.answered(_name(taken), "" if failure is None else failure.code, seconds)
        call_id = "" if taken.asked is None else taken.asked.tool_call_id
        if failure is None:
            return await self._encode(taken, Result(True, data, None, meta, call_id))
        if span is not None:
            span.fail(failure.code, failure.message)
            span.end()
        return await self._encode(
            taken, Result.of_error(self._instructive(failure, taken), tool_call_id=call_id, meta=meta)
        )

    def refusal(self, taken: Taken, why: ErrorInfo) -> bytes | None:
        """The bytes that answer a call without running it; None when nobody could read them."""
        try:
            self.read(taken)
        except Rejected as problem:
            why = problem.info
        call_id = "" if taken.asked is None else taken.asked.tool_call_id
        return self._reply(taken, Result.of_error(why, tool_call_id=call_id))[1]

    def read(self, taken: Taken) -> Asked:
        """Decodes and identifies a call; a second time it gives what it read. Raises Rejected."""
        if taken.asked is not None:
            return taken.asked
        sender, name = self._connection.subjects.parse_call(taken.message.subject)
        taken.envelope = envelope = Envelope.decode(taken.message.data)
        if envelope.sender != sender:
            raise error(
                "auth.unverified_sender",
                f"from is {envelope.sender!r}, but it was published as {sender!r}; publish under your own name",
                envelope=envelope.sender,
                subject=sender,
            )
        if envelope.to != self._agent:
            raise error("protocol.malformed", f"to is {envelope.to!r}, the subject says {self._agent!r}", path="to")
        if DATA_REF not in envelope.extensions:
            asked = Asked.of(envelope)
            if asked.tool_name != name:
                raise error("protocol.malformed", "payload.tool_name is not the subject's", path="payload.tool_name")
            taken.asked = asked
            return asked
        # The payload comes later; until then the subject says what is asked.
        taken.asked = Asked(envelope.message_id, name, None)
        return taken.asked

    async def _work(self, taken: Taken, span: Span, meta: dict[str, Any]) -> Any:
        envelope, asked = taken.envelope, taken.asked
        assert envelope is not None
        assert asked is not None
        meta["tool_name"], meta["trace_id"] = asked.tool_name, envelope.trace_id
        budget.check(envelope, max_hops=self._max_hops)
        if DATA_REF in envelope.extensions:
            envelope = await restore(envelope, self._artifacts)
            taken.asked = asked = Asked.of(envelope)
        capability = self._capabilities.get(asked.tool_name)
        if capability is None:
            raise self._unknown(asked.tool_name)
        card = capability.card
        meta["tool_version"] = card.version
        if not card.serves(asked.version):
            raise error(
                "registry.no_common_version",
                f"{card.name} has the version {card.version} here, it was called for {asked.version}",
                ours=[card.version, *card.accepts],
                theirs=asked.version,
                started=False,
            )
        taken.ends_at = ends_at = time.monotonic() + _time_left(envelope, card.timeout_s)
        # Rules, labels and confirmations are such checks.
        for check in self._checks:
            await check(asked, envelope, card)
        admitted, coerced = capability.admit(asked.arguments)
        if coerced:
            meta["coerced"] = coerced
        if slips := capability.gate.unknown_names(asked.arguments):
            meta["warnings"] = slips
        key = envelope.extensions.get("idempotency_key")
        call = None
        if capability.takes_call:
            call = Call(
                envelope,
                agent=self._agent,
                tool_call_id=asked.tool_call_id,
                idempotency_key=key,
                ends_at=ends_at,
                span=span,
                caller=self._caller,
                publish=self._publish,
                artifacts=self._artifacts,
            )

        async def perform() -> Any:
            data = capability.release(await contained(lambda one: capability.run(admitted, one), call))
            if call is not None and call.model_id is not None:
                meta["model_id"] = call.model_id
            if asked.max_result_bytes is None:
                return data
            data, whole = await cut(data, asked.max_result_bytes, self._artifacts)
            if whole is not None:
                meta["whole"] = whole
            return data

        if key is None:
            return await perform()
        return await self._once(key, envelope.sender, asked, ends_at, meta, perform)

    async def _once(
        self,
        key: str,
        sender: str,
        asked: Asked,
        ends_at: float,
        meta: dict[str, Any],
        perform: Callable[[], Awaitable[Any]],
    ) -> Any:
        """Performs what its key has not done before; else gives what it came to."""
        claim: Claim | None = await self._replays.claim(
            sender=sender,
            capability=asked.tool_name,
            key=key,
            arguments=asked.arguments,
            tool_call_id=asked.tool_call_id,
            ends_at=ends_at,
        )
        assert claim is not None
        if claim.stored is not None:
            meta.update({name: value for name, value in claim.stored["meta"].items() if name != "trace_id"})
            meta["replayed"] = True
            return claim.stored["data"]
        try:
            data = await perform()
            await self._replays.store(claim, {"data": data, "meta": dict(meta)}, asked.arguments)
            claim = None
            return data
        finally:
            if claim is not None:
                await asyncio.shield(self._replays.release(claim))

    def _unknown(self, name: str) -> BusError:
        near = nearest(name, list(self._capabilities), cutoff=0.5)
        return error(
            "tool.unknown_capability",
            f"{self._agent} has no capability {name!r}" + (f"; did you mean {near!r}?" if near else ""),
            nearest=[near] if near else [],
            started=False,
        )

    def _instructive(self, failure: ErrorInfo, taken: Taken) -> ErrorInfo:
        """A refusal of arguments with what a model needs to mend them; others as they are."""
        asked = taken.asked
        capability = None if asked is None else self._capabilities.get(asked.tool_name)
        if (
            failure.code != "tool.validation_failed"
            or capability is None
            or asked is None
            or "schema" in failure.details
        ):
            return failure
        left = max(0, asked.repairs_left - 1)
        wrong = "; ".join(f"{one['path']}: {one['problem']}" for one in failure.details.get("errors", [])[:10])
        advice = (
            "Correct exactly these, keep the rest, and call it again."
            if asked.repairs_left
            else "Do not call it again with other guesses; say what is missing, or use another tool."
        )
        instruction = f"The call of {asked.tool_name} did not run, because its arguments do not fit. {wrong}. {advice}"
        details = {
            **failure.details,
            "schema": dict(capability.card.input_schema),
            "example": capability.card.example,
            "repairs_left": left,
            "instruction": instruction,
            "started": False,
        }
        return ErrorInfo(failure.code, failure.message, details, retryable=failure.retryable)

    async def _encode(self, taken: Taken, result: Result) -> bytes | None:
        if not taken.message.reply:
            if result.error is not None:
                log.warning("%s: a notified call failed: %s", self._agent, result.error.message, extra=_ids(taken))
            return None
        try:
            return await self._bytes(taken, result)
        except BusError as problem:
            failed = problem
        # JSON has no word for it, or nobody could store it.
        code = "tool.invalid_result" if isinstance(failed, Rejected) else failed.info.code
        info = error(code, f"the result of {_name(taken)} cannot be sent: {failed.info.message}").info
        return self._reply(taken, Result.of_error(info, tool_call_id=result.tool_call_id))[1]

    async def _bytes(self, taken: Taken, result: Result) -> bytes | None:
        fields, data = self._reply(taken, result)
        tell_answered(fields)
        if data is not None and len(data) > self._inline_limit:
            whole = Envelope.from_fields(fields)
            data = (
                await refer(whole, self._artifacts, over_bytes=self._inline_limit, timeout_s=REFER_TIMEOUT_S)
            ).encode()
        return data

    def _reply(self, taken: Taken, result: Result) -> tuple[dict[str, Any], bytes | None]:
        """The result's envelope, its fields and its bytes; no bytes when nobody could read them."""
        envelope = taken.envelope
        tokens = taken.message.subject.split(".", 5)
        sender = tokens[4] if len(tokens) == 6 else ""
        if envelope is None and not is_agent_name(sender):
            log.warning("%s: a call on %s names nobody to answer", self._agent, taken.message.subject[:200])
            return {}, None
        status = "success"
        if result.error is not None:
            status = "cancelled" if result.error.code == "tool.cancelled" else "error"
        return letter(
            sender=self._agent,
            to=sender if envelope is None else envelope.sender,
            type=RESULT_TYPE,
            trace_id=new_trace_id() if envelope is None else envelope.trace_id,
            session_id=None if envelope is None else envelope.session_id,
            workflow_id=None if envelope is None else envelope.workflow_id,
            role="tool",
            status=status,
            extensions={} if envelope is None else {"causation_id": envelope.message_id},
            payload=result.to_payload(),
        )

    def _open_span(self, taken: Taken) -> Span:
        envelope, headers = taken.envelope, taken.message.headers
        trace_id = envelope.trace_id if envelope is not None else new_trace_id()
        return self._telemetry.start(
            lambda: f"execute_tool {_name(taken)}",
            SpanKind.SERVER,
            trace_id=trace_id,
            parent=TraceContext.from_headers(headers) if headers else None,
            sampling_key=(envelope.workflow_id if envelope is not None else None) or trace_id,
            attributes=lambda: tool_attributes(self._agent, taken.asked, envelope),
        )


def _time_left(envelope: Envelope, timeout_s: float) -> float:
    deadline = (envelope.extensions.get("budget") or {}).get("deadline_at")
    if deadline is None:
        return timeout_s
    return min(timeout_s, max(0.0, (instant(deadline) - datetime.now(UTC)).total_seconds()))


def _take_back_cancellation() -> None:
    """The cancellation was for the call, not for the task that runs it, which goes on with the next one."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


def _name(taken: Taken) -> str:
    return "a call" if taken.asked is None else taken.asked.tool_name


def _ids(taken: Taken) -> dict[str, str | None]:
    if taken.envelope is None:
        return {}
    return {
        "message_id": taken.envelope.message_id,
        "workflow_id": taken.envelope.workflow_id,
        "trace_id": taken.envelope.trace_id,
        "tool_call_id": taken.asked.tool_call_id if taken.asked is not None else None,
    }
