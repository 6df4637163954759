"""Span attributes of a message, by the OpenTelemetry messaging conventions."""

from __future__ import annotations

from bus.envelope import Envelope

Attributes = dict[str, str | int | float | bool]


def message_attributes(operation: str, envelope: Envelope, *, agent: str) -> Attributes:
    """The attributes that a span has from its start, for `operation` send, process or settle done by `agent`."""
    attributes: Attributes = {
        "messaging.system": "nats",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.template": f"{envelope.to}.{envelope.type}",
        "messaging.message.id": envelope.message_id,
        "bus.agent": agent,
        "bus.message.type": envelope.type,
    }
    if envelope.workflow_id is not None:
        attributes["messaging.message.conversation_id"] = envelope.workflow_id
        attributes["bus.workflow_id"] = envelope.workflow_id
    if envelope.session_id is not None:
        attributes["bus.session_id"] = envelope.session_id
    if envelope.schema is not None:
        attributes["bus.schema"] = envelope.schema
    if envelope.phase is not None:
        attributes["bus.phase"] = envelope.phase
    if envelope.causation_id is not None:
        attributes["bus.causation_id"] = envelope.causation_id
    if envelope.type == "error" and (code := _refused_for(envelope)) is not None:
        attributes["bus.refusal.code"] = code
    return attributes


def _refused_for(envelope: Envelope) -> str | None:
    """The error code of a refusal; None when it is somebody else's message of that type."""
    problem = envelope.payload.get("error") if isinstance(envelope.payload, dict) else None
    code = problem.get("code") if isinstance(problem, dict) else None
    return code if isinstance(code, str) else None
