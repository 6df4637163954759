"""The line that every call takes through its callee, each stage once, in this order.

decode, identity, budget, capability, checks, gate 1, idempotency key, handler, gate 2, stored under its key, reply.
Stages never call each other. What a capability raises is caught here and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable
from typing import Any

from bus.broker.connection import Connection
from bus.calls.answers import Answers
from bus.calls.asked import Asked
from bus.calls.attributes import tool_attributes
from bus.calls.execution import Execution
from bus.calls.feed import Feed
from bus.calls.refusals import instructive
from bus.calls.taken import Taken
from bus.calls.witness import Witness
from bus.contracts.result import Result
from bus.envelope import new_trace_id
from bus.errors import BusError, ErrorInfo, Rejected, error
from bus.telemetry.context import TraceContext
from bus.telemetry.logs import take_in_hand
from bus.telemetry.spans import PassingSpan, Span, SpanKind, Telemetry
from bus.telemetry.told import told, told_with_trace

log = logging.getLogger("bus.calls")


class Line:
    """Answers the calls of one agent."""

    def __init__(
        self,
        connection: Connection,
        telemetry: Telemetry,
        execution: Execution,
        answers: Answers,
        witness: Witness,
        *,
        agent: str,
    ) -> None:
        self._subjects = connection.subjects
        self._telemetry = telemetry
        self._execution = execution
        self._answers = answers
        self._witness = witness
        self._agent = agent

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
                taken.read(self._agent, self._subjects)
            finally:
                span = self._open_span(taken)
                if taken.envelope is not None:
                    taken.lines = take_in_hand(taken.envelope, self._agent, span, {})
            data = await self._execution.run(taken, span, meta)
        except asyncio.CancelledError:
            if taken.ended is None:
                taken.failure = error("tool.cancelled", "its replica was stopped at once").info
                self._witness.answered(taken, {"elapsed_ms": _since(started)})
                raise
            _take_back_cancellation()
            failure = taken.ended
        except BusError as problem:
            failure = problem.info
        except TimeoutError:
            failure = error("tool.timeout", f"{taken.name} ran into a timeout of its own").info
        except Exception as problem:
            log.error("%s: %s failed: %s", self._agent, taken.name, told_with_trace(problem), extra=taken.ids)
            failure = error("tool.execution_failed", f"{taken.name} failed: {told(problem)}").info
        finally:
            if span is not None and failure is None:
                span.end()
        meta["elapsed_ms"] = _since(started)
        seconds = time.perf_counter() - started
        call_id = "" if taken.asked is None else taken.asked.tool_call_id
        taken.failure = failure
        if failure is None:
            result = Result(True, data, None, meta, call_id)
        else:
            if span is not None:
                span.fail(failure.code, failure.message)
                span.end()
            failure = instructive(failure, taken.asked, self._execution.capability(taken))
            result = Result.of_error(failure, tool_call_id=call_id, meta=meta)
        try:
            return await self._tell(taken, result)
        finally:
            # A result that cannot be sent is a failure too, and only known by now.
            code = "" if taken.failure is None else taken.failure.code
            self._telemetry.metrics.calls.answered(taken.name, code, seconds)
            self._witness.answered(taken, meta, data)

    def _tell(self, taken: Taken, result: Result) -> Awaitable[bytes | None]:
        return self._answers.encode(taken, result) if taken.feed is None else self._finish(taken, taken.feed, result)

    async def _finish(self, taken: Taken, feed: Feed, result: Result) -> bytes | None:
        # The work is over, so that whoever ends it now must not interrupt the word of that.
        taken.task = None
        await feed.finish(result)
        return None if feed.streams else await self._answers.encode(taken, result)

    def refusal(self, taken: Taken, why: ErrorInfo) -> bytes | None:
        """The bytes that answer a call without running it; None when nobody could read them."""
        try:
            self.read(taken)
        except Rejected as problem:
            why = problem.info
        call_id = "" if taken.asked is None else taken.asked.tool_call_id
        taken.failure = why
        self._witness.answered(taken, {})
        return self._answers.short(taken, why, call_id)

    def read(self, taken: Taken) -> Asked:
        """What a call asks; read once. Raises Rejected."""
        return taken.read(self._agent, self._subjects)

    def _open_span(self, taken: Taken) -> Span:
        envelope, headers = taken.envelope, taken.message.headers
        if self._telemetry.passes(headers):
            return PassingSpan(headers)
        trace_id = envelope.trace_id if envelope is not None else new_trace_id()
        return self._telemetry.start(
            lambda: f"execute_tool {taken.name}",
            SpanKind.SERVER,
            trace_id=trace_id,
            parent=TraceContext.from_headers(headers),
            sampling_key=(envelope.workflow_id if envelope is not None else None) or trace_id,
            attributes=lambda: tool_attributes(self._agent, taken.asked, envelope),
        )


def _since(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 3)


def _take_back_cancellation() -> None:
    """The cancellation was for the call, not for the task that runs it, which goes on with the next one."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()
