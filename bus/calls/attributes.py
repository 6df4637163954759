"""Span attributes of a call, by the OpenTelemetry conventions for remote calls, and on the callee's side for tools."""

from __future__ import annotations

from bus.calls.asked import Asked
from bus.envelope import Envelope

Attributes = dict[str, str | int | float | bool]


def call_attributes(
    agent: str, asked: Asked | None, envelope: Envelope | None, *, workflow_id: str | None = None
) -> Attributes:
    """The attributes that the spans of a call have from their start, on both sides.

    `workflow_id` is for a caller, who has no envelope yet.
    None is a `gen_ai.*`: Jaeger takes a span with one for the work of a model or a tool, which a caller's is not.
    """
    attributes: Attributes = {"rpc.system.name": "nats", "bus.agent": agent}
    if asked is not None:
        attributes |= {"rpc.method": asked.tool_name, "bus.call_id": asked.tool_call_id}
    if workflow_id is not None:
        attributes["bus.workflow_id"] = workflow_id
    if envelope is not None:
        attributes |= {"bus.caller": envelope.sender, "bus.callee": envelope.to}
        if envelope.workflow_id is not None:
            attributes["bus.workflow_id"] = envelope.workflow_id
        if envelope.session_id is not None:
            attributes["bus.session_id"] = envelope.session_id
    return attributes


def tool_attributes(agent: str, asked: Asked | None, envelope: Envelope | None) -> Attributes:
    """Those of the callee's span, which runs the tool."""
    attributes = call_attributes(agent, asked, envelope) | {"gen_ai.operation.name": "execute_tool"}
    if asked is not None:
        attributes |= {"gen_ai.tool.name": asked.tool_name, "gen_ai.tool.call.id": asked.tool_call_id}
    return attributes
