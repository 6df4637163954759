"""Span attributes of a message, by the OpenTelemetry messaging conventions."""

from __future__ import annotations

from collections.abc import Callable

from bus.broker.subjects import BROADCAST
from bus.envelope import Envelope
from bus.telemetry.context import w3c_trace_id
from bus.telemetry.recorder import CommonAttributes

MAX_KINDS = 1024

Attributes = dict[str, str | int | float | bool]


def kind_attributes(operation: str, envelope: Envelope, *, agent: str) -> Attributes:
    """Those that messages of one kind have in common, for `operation` send, process or settle done by `agent`."""
    attributes: Attributes = {
        "messaging.system": "nats",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.template": f"{envelope.to}.{envelope.type}",
        "bus.agent": agent,
        "bus.message.type": envelope.type,
    }
    if envelope.schema is not None:
        attributes["bus.schema"] = envelope.schema
    if envelope.phase is not None:
        attributes["bus.phase"] = envelope.phase
    return attributes


def id_attributes(envelope: Envelope) -> Attributes:
    """Those of one message."""
    attributes: Attributes = {"messaging.message.id": envelope.message_id}
    workflow_id, session_id, causation_id = envelope.workflow_id, envelope.session_id, envelope.causation_id
    if workflow_id is not None:
        attributes["messaging.message.conversation_id"] = workflow_id
        attributes["bus.workflow_id"] = workflow_id
    if session_id is not None:
        attributes["bus.session_id"] = session_id
    if causation_id is not None:
        attributes["bus.causation_id"] = causation_id
    if envelope.type == "error" and (code := _refused_for(envelope)) is not None:
        attributes["bus.refusal.code"] = code
    if w3c_trace_id(envelope.trace_id) != envelope.trace_id:
        attributes["bus.foreign_trace_id"] = envelope.trace_id
    return attributes


class KindAttributes:
    """What spans of one agent have in common, kept for 1,024 kinds of message; a stranger's phases make no more."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[str, str | None, str | None, int], CommonAttributes] = {}

    def of(self, envelope: Envelope, subject: str, make: Callable[[], Attributes], *, epoch: int) -> CommonAttributes:
        """The attributes that `make` makes for messages of this kind and subject in one epoch of the connection."""
        key = (subject, envelope.schema, envelope.phase, epoch)
        known = self._known.get(key)
        if known is None:
            known = CommonAttributes(make())
            # The subject of a broadcast names its workflow.
            if envelope.to != BROADCAST and len(self._known) < MAX_KINDS:
                self._known[key] = known
        return known


def _refused_for(envelope: Envelope) -> str | None:
    """The error code of a refusal; None when it is somebody else's message of that type."""
    problem = envelope.payload.get("error") if isinstance(envelope.payload, dict) else None
    code = problem.get("code") if isinstance(problem, dict) else None
    return code if isinstance(code, str) else None
