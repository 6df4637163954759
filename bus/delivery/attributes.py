"""Span attributes of a message, by the OpenTelemetry messaging conventions."""

from __future__ import annotations

from bus.envelope import Envelope


def message_attributes(operation: str, envelope: Envelope) -> dict[str, str | int | float | bool]:
    """The attributes that a span has from its start, for `operation` send or process."""
    attributes: dict[str, str | int | float | bool] = {
        "messaging.system": "nats",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.template": f"{envelope.to}.{envelope.type}",
        "messaging.message.id": envelope.message_id,
        "bus.agent": envelope.sender if operation == "send" else envelope.to,
        "bus.message.type": envelope.type,
    }
    if envelope.workflow_id is not None:
        attributes["messaging.message.conversation_id"] = envelope.workflow_id
        attributes["bus.workflow_id"] = envelope.workflow_id
    if envelope.session_id is not None:
        attributes["bus.session_id"] = envelope.session_id
    if envelope.phase is not None:
        attributes["bus.phase"] = envelope.phase
    return attributes
