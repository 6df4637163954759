"""Span attributes of a call, by the OpenTelemetry conventions for tools."""

from __future__ import annotations

from bus.calls.asked import Asked
from bus.envelope import Envelope


def call_attributes(agent: str, asked: Asked | None, envelope: Envelope | None) -> dict[str, str | int | float | bool]:
    """The attributes that the spans of a call have from their start, on both sides."""
    attributes: dict[str, str | int | float | bool] = {"bus.agent": agent, "gen_ai.operation.name": "execute_tool"}
    if asked is not None:
        attributes |= {"gen_ai.tool.name": asked.tool_name, "gen_ai.tool.call.id": asked.tool_call_id}
    if envelope is not None:
        attributes |= {"bus.caller": envelope.sender, "bus.callee": envelope.to}
        if envelope.workflow_id is not None:
            attributes["bus.workflow_id"] = envelope.workflow_id
        if envelope.session_id is not None:
            attributes["bus.session_id"] = envelope.session_id
    return attributes
