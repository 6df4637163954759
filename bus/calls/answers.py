"""Answers: what a call came to, as the bytes of its result."""

from __future__ import annotations

import logging
from typing import Any

from bus.calls.asked import RESULT_TYPE
from bus.calls.letters import letter
from bus.calls.taken import Taken
from bus.contracts.result import Result
from bus.envelope import Envelope, is_agent_name, new_trace_id
from bus.errors import BusError, ErrorInfo, Rejected, error
from bus.telemetry.logs import tell_answered
from bus.workflow.artifacts import Artifacts
from bus.workflow.references import refer

log = logging.getLogger("bus.calls")

REFER_TIMEOUT_S = 5.0


class Answers:
    """Writes the answers of one agent; those over the inline limit go by reference."""

    __slots__ = ("_agent", "_artifacts", "_inline_limit")

    def __init__(self, agent: str, artifacts: Artifacts, *, inline_limit: int) -> None:
        self._agent = agent
        self._artifacts = artifacts
        self._inline_limit = inline_limit

    async def encode(self, taken: Taken, result: Result) -> bytes | None:
        """The bytes of a result; None for a notified call, and when nobody could read them.

        A result that cannot be sent is answered as the error that says so.
        """
        if not taken.message.reply:
            if result.error is not None:
                log.warning("%s: a notified call failed: %s", self._agent, result.error.message, extra=taken.ids)
            return None
        try:
            fields, data = self._reply(taken, result)
            tell_answered(fields)
            if data is not None and len(data) > self._inline_limit:
                whole, over = Envelope.from_fields(fields), self._inline_limit
                data = (await refer(whole, self._artifacts, over_bytes=over, timeout_s=REFER_TIMEOUT_S)).encode()
            return data
        except BusError as problem:
            failed = problem
        # JSON has no word for it, or nobody could store it.
        code = "tool.invalid_result" if isinstance(failed, Rejected) else failed.info.code
        info = error(code, f"the result of {taken.name} cannot be sent: {failed.info.message}").info
        taken.failure = info
        return self.short(taken, info, result.tool_call_id)

    def accepted(self, taken: Taken, tool_call_id: str, instance: str, timeout_s: float) -> bytes:
        """The bytes that say that a stream comes, from which replica, and how long that may take."""
        here = {"agent": self._agent, "instance": instance, "timeout_s": timeout_s}
        return self._reply(taken, Result(True, here, None, {"streaming": True}, tool_call_id), "pending")[1] or b""

    def short(self, taken: Taken, why: ErrorInfo, tool_call_id: str) -> bytes | None:
        """The bytes of an error that is always small enough; None when nobody could read them."""
        return self._reply(taken, Result.of_error(why, tool_call_id=tool_call_id))[1]

    def _reply(self, taken: Taken, result: Result, status: str | None = None) -> tuple[dict[str, Any], bytes | None]:
        """The result's envelope, its fields and its bytes; no bytes when nobody could read them."""
        envelope = taken.envelope
        if envelope is not None:
            return letter(
                sender=self._agent,
                to=envelope.sender,
                type=RESULT_TYPE,
                trace_id=envelope.trace_id,
                session_id=envelope.session_id,
                workflow_id=envelope.workflow_id,
                role="tool",
                status=status or result.status,
                extensions={"causation_id": envelope.message_id},
                payload=result.to_payload(),
            )
        tokens = taken.message.subject.split(".", 5)
        sender = tokens[4] if len(tokens) == 6 else ""
        if not is_agent_name(sender):
            log.warning("%s: a call on %s names nobody to answer", self._agent, taken.message.subject[:200])
            return {}, None
        return letter(
            sender=self._agent,
            to=sender,
            type=RESULT_TYPE,
            trace_id=new_trace_id(),
            session_id=None,
            workflow_id=None,
            role="tool",
            status=status or result.status,
            extensions={},
            payload=result.to_payload(),
        )
