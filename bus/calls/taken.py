"""A call in hand: its bytes as they came, what has been read of them, and why it is ended."""

from __future__ import annotations

import asyncio

from bus.broker.parser import Arrival
from bus.broker.subjects import Subjects
from bus.calls.asked import Asked
from bus.calls.feed import Feed
from bus.envelope import Envelope
from bus.errors import ErrorInfo, error
from bus.telemetry.logs import InHand, in_hand
from bus.trust.call_record import canonical
from bus.workflow.references import DATA_REF


class Taken:
    """One call in hand. `ended` is why it was cancelled from outside; the capability sees a cancellation.

    `arguments` are the arguments as they came, in canonical JSON, since a capability may change what it is given.
    `denied` is why the rules refuse it, which its caller is not told; `failure` what it is told instead of a result.
    """

    __slots__ = (
        "arguments",
        "asked",
        "attempt",
        "denied",
        "ended",
        "ends_at",
        "envelope",
        "failure",
        "feed",
        "lines",
        "message",
        "task",
        "task_id",
    )

    def __init__(self, message: Arrival) -> None:
        self.message = message
        self.envelope: Envelope | None = None
        self.feed: Feed | None = None
        self.asked: Asked | None = None
        self.ends_at = float("inf")
        self.ended: ErrorInfo | None = None
        self.task: asyncio.Task[None] | None = None
        self.lines: InHand | None = None
        # Of the task that this call is, and which run of it.
        self.task_id: str | None = None
        self.attempt = 1
        self.arguments: bytes | None = None
        self.denied = ""
        self.failure: ErrorInfo | None = None

    def hold(self, asked: Asked) -> Asked:
        """Takes what it asks, arguments included."""
        self.asked, self.arguments = asked, canonical(asked.arguments)
        return asked

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

    @property
    def name(self) -> str:
        """The capability that it asks for, in the words of a sentence."""
        return "a call" if self.asked is None else self.asked.tool_name

    @property
    def ids(self) -> dict[str, str | None]:
        """The ids that a log line about it carries."""
        if self.envelope is None:
            return {}
        return {
            "message_id": self.envelope.message_id,
            "workflow_id": self.envelope.workflow_id,
            "trace_id": self.envelope.trace_id,
            "tool_call_id": self.asked.tool_call_id if self.asked is not None else None,
        }

    def read(self, agent: str, subjects: Subjects) -> Asked:
        """Decodes and identifies it as a call to `agent`; a second time it gives what it read. Raises Rejected."""
        if self.asked is not None:
            return self.asked
        sender, name = subjects.parse_call(self.message.subject)
        self.envelope = envelope = Envelope.decode(self.message.data)
        if envelope.sender != sender:
            raise error(
                "auth.unverified_sender",
                f"from is {envelope.sender!r}, but it was published as {sender!r}; publish under your own name",
                envelope=envelope.sender,
                subject=sender,
            )
        if envelope.to != agent:
            raise error("protocol.malformed", f"to is {envelope.to!r}, the subject says {agent!r}", path="to")
        if DATA_REF not in envelope.extensions:
            asked = Asked.of(envelope)
            if asked.tool_name != name:
                raise error("protocol.malformed", "payload.tool_name is not the subject's", path="payload.tool_name")
            return self.hold(asked)
        # The payload comes later; until then the subject says what is asked.
        self.asked = Asked(envelope.message_id, name, None)
        return self.asked
