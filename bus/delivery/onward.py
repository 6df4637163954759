"""Where a message goes on: its envelope and its headers name one trace, and a trace that is full has a next one."""

from __future__ import annotations

from bus.envelope import Envelope
from bus.telemetry.context import TraceContext, w3c_trace_id
from bus.telemetry.spans import Telemetry


def onward(telemetry: Telemetry, envelope: Envelope, parent: TraceContext) -> tuple[Envelope, TraceContext]:
    """The envelope and the parent to send under.

    The headers decide: an envelope that names another trace (its cause came with headers of another one, or the
    trace is full) gets theirs. A foreign trace id stays as long as it stands for the trace of the headers.
    """
    parent = telemetry.onward(parent, workflow_id=envelope.workflow_id)
    trace_id = envelope.trace_id
    if trace_id != parent.trace_id and w3c_trace_id(trace_id) != parent.trace_id:
        envelope = envelope.replace(trace_id=parent.trace_id)
    return envelope, parent
