"""Spans: one for each send and process, and for settlements worth seeing, exported over OTLP when an endpoint is set.

Without an endpoint, and for what is not sampled, a span costs an object, and the context that came in is passed on
unchanged. What the attributes mean: `schemas/README.md`, section Tracing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bus.telemetry import sampling
from bus.telemetry.context import TraceContext, unsampled_traceparent, w3c_trace_id
from bus.telemetry.length import TRACES_KEPT, TraceLengths, next_trace_id, without_length
from bus.telemetry.metrics import ServiceMetrics
from bus.telemetry.otlp import OtlpJsonExporter
from bus.telemetry.otlp_metrics import MetricExport
from bus.telemetry.posting import endpoint
from bus.telemetry.recorder import NONE_IN_COMMON, CommonAttributes, Counts, Recorder, SpanRecord
from bus.telemetry.selection import misfits

log = logging.getLogger("bus.telemetry")

CLOSE_S = 5.0
METRICS_CLOSE_S = 1.0
SAMPLED = "01"
# A traceparent of version 00; the last bit of its flags says whether it is sampled.
PLAIN_LENGTH = 55
EVEN = "02468ace"

Attributes = Mapping[str, str | int | float | bool]


class SpanKind:
    """The kinds of OTLP. No enum, because to look one up takes as long as to make a span that is not recorded."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3
    PRODUCER = 4
    CONSUMER = 5


class Span:
    """One operation. `context` is what messages sent inside it carry; None when there is nothing to carry."""

    __slots__ = ("_record", "_recorder", "context")

    def __init__(
        self, context: TraceContext | None, record: SpanRecord | None = None, recorder: Recorder | None = None
    ) -> None:
        self.context = context
        self._record = record
        self._recorder = recorder

    @property
    def is_recording(self) -> bool:
        """Whether attributes are kept; build them only then."""
        return self._record is not None

    def headers(self) -> dict[str, str]:
        """The headers of what is sent inside it."""
        context = self.context
        return context.to_headers() if context is not None else {}

    @property
    def header_lines(self) -> str:
        """The headers of what is sent inside it as they stand on the wire; empty where they need another look.

        Strangers may have a part in a state or a baggage, and lines must not begin in them.
        """
        context = self.context
        if context is None or context.baggage:
            return ""
        state = context.state
        if not state:
            return f"traceparent: {context.traceparent}\r\n"
        if state.isprintable() and state.isascii():
            return f"traceparent: {context.traceparent}\r\ntracestate: {state}\r\n"
        return ""

    def set(self, attributes: Attributes) -> None:
        """Adds attributes."""
        if self._record is not None:
            self._record.attributes.update(attributes)

    def event(self, name: str, attributes: Attributes) -> None:
        """Adds something that happened at this moment."""
        if self._record is not None:
            self._record.events.append((time.time_ns(), name, dict(attributes)))

    def link(self, contexts: Iterable[TraceContext]) -> None:
        """Adds links to other spans, each once and none to itself."""
        if self._record is not None:
            known = dict.fromkeys(self._record.links)
            known |= dict.fromkeys((one.trace_id, one.span_id) for one in contexts)
            known.pop((self._record.trace_id, self._record.span_id), None)
            self._record.links = tuple(known)

    def fail(self, code: str, message: str) -> None:
        """Marks the span as failed with an error code of the error table; the first one stays."""
        if self._record is not None and self._record.error is None:
            self._record.attributes["error.type"] = code
            self._record.error = message

    def end(self) -> None:
        """Ends it; a second call does nothing."""
        if self._record is not None and self._recorder is not None:
            self._record.end_ns = time.time_ns()
            self._recorder.add(self._record)
            self._record = None


class UnrecordedSpan(Span):
    """An operation that is not recorded. Nearly every message makes two, so what they have in common is the class's."""

    __slots__ = ()

    _record = None
    _recorder = None
    is_recording = False

    def __init__(self, context: TraceContext | None) -> None:
        self.context = context

    def end(self) -> None:
        """Nothing is kept."""


class UnsampledRoot(UnrecordedSpan):
    """One that begins a trace which nobody records; what follows has to know that."""

    __slots__ = ("_trace_id",)

    def __init__(self, trace_id: str) -> None:
        self._trace_id = trace_id

    @property
    def context(self) -> TraceContext | None:
        """Made when something other than headers is asked for, which is rare."""
        return TraceContext.from_headers(self.headers())

    @context.setter
    def context(self, _: TraceContext | None) -> None:
        return

    def headers(self) -> dict[str, str]:
        """The headers of what is sent inside it."""
        return {"traceparent": unsampled_traceparent(self._trace_id)}

    @property
    def header_lines(self) -> str:
        """The headers of what is sent inside it as they stand on the wire."""
        return f"traceparent: {unsampled_traceparent(self._trace_id)}\r\n"


class PassingSpan(UnrecordedSpan):
    """One below another that is not recorded either: it passes on the context that came in."""

    __slots__ = ("_headers",)

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers

    @property
    def context(self) -> TraceContext | None:
        """Read from the headers when something is sent, which most messages do not cause."""
        return TraceContext.from_headers(self._headers)

    @context.setter
    def context(self, _: TraceContext | None) -> None:
        return


class Telemetry:
    """The spans of one service: every agent has its own, also when several share a process.

    Raises SettingsError, naming the variable, for wrong values of the standard `OTEL_*` variables.
    """

    def __init__(self, service: str, *, namespace: str) -> None:
        self.service = service
        self.instance_id = str(uuid.uuid4())
        self.metrics = ServiceMetrics(service)
        self._recorder: Recorder | None = None
        self._share = sampling.ratio()
        self._lengths = TraceLengths()
        self._continued: OrderedDict[str, TraceContext] = OrderedDict()
        resource = {
            "service.name": service,
            "service.namespace": namespace,
            "service.instance.id": self.instance_id,
            # Jaeger corrects clock skew between hosts, and takes one host's clock for one.
            "host.name": socket.gethostname(),
            "process.pid": str(os.getpid()),
            "telemetry.sdk.language": "python",
        }
        if (url := endpoint()) is not None:
            self._recorder = Recorder(OtlpJsonExporter(url, resource))
        for line in misfits(os.environ):
            log.warning("%s: %s", service, line)
        self.metrics.observe_spans(self._recorder)
        self._metric_export = MetricExport.from_environment(self.metrics, resource)

    @property
    def counts(self) -> Counts | None:
        """What became of the spans so far; None when none are recorded."""
        return self._recorder.counts() if self._recorder is not None else None

    def start(
        self,
        name: Callable[[], str],
        kind: int,
        *,
        trace_id: str,
        parent: TraceContext | None,
        sampling_key: str,
        link_parent: bool = False,
        start_ns: int | None = None,
        attributes: Callable[[], dict[str, str | int | float | bool]],
    ) -> Span:
        """Starts a span below `parent`; without a parent it is a root of the trace `trace_id`.

        A root is recorded by the share of `sampling_key`, everything below as its parent. `name` and `attributes`
        are called only for what is recorded. `link_parent` adds the parent as a link too; `start_ns` is when it
        began (epoch nanoseconds), if that was earlier.
        """
        return self.unrecorded(trace_id=trace_id, parent=parent, sampling_key=sampling_key) or self.recorded(
            name(), kind, trace_id=trace_id, parent=parent, link_parent=link_parent, start_ns=start_ns,
            attributes=attributes(),
        )  # fmt: skip

    def unrecorded(self, *, trace_id: str, parent: TraceContext | None, sampling_key: str) -> Span | None:
        """The span of an operation that is not recorded; None for one that is, which then begins with `recorded`."""
        if self._recorder is None:
            return UnrecordedSpan(parent)
        if parent is not None:
            return None if parent.is_sampled else UnrecordedSpan(parent)
        if sampling.is_sampled(sampling_key, self._share):
            return None
        return UnsampledRoot(trace_id)

    def recorded(
        self,
        name: str,
        kind: int,
        *,
        trace_id: str,
        parent: TraceContext | None,
        link_parent: bool = False,
        start_ns: int | None = None,
        attributes: dict[str, str | int | float | bool],
        common: CommonAttributes = NONE_IN_COMMON,
    ) -> Span:
        """Starts the span of an operation that `unrecorded` has answered None for; the arguments of `start`.

        `common` are further attributes, shared with other spans.
        """
        return self._record(
            name,
            kind,
            parent or TraceContext(w3c_trace_id(trace_id), "", SAMPLED),
            ((parent.trace_id, parent.span_id),) if parent is not None and link_parent else (),
            attributes,
            start_ns,
            common,
        )

    def onward(self, parent: TraceContext, *, workflow_id: str | None) -> TraceContext:
        """Where to go on below `parent`: there, or in the next trace once its own has about 2,000 spans.

        Jaeger gets slow and unreadable beyond. All services choose the same next trace.
        """
        while self._recorder is not None and parent.is_sampled and self._lengths.is_full(parent.trace_id):
            known = self._continued.get(parent.trace_id)
            if known is None:
                known = self.continued(parent, next_trace_id(parent.trace_id), name=None, workflow_id=workflow_id)
                self._continued[parent.trace_id] = known
                if len(self._continued) > TRACES_KEPT:
                    self._continued.popitem(last=False)
            parent = known._replace(baggage=parent.baggage)
        return parent

    def continued(
        self, after: TraceContext, trace_id: str, *, name: str | None, workflow_id: str | None
    ) -> TraceContext:
        """Begins the trace `trace_id` as the one that follows after a span: two short spans, linked to each other.

        Jaeger shows links into other traces badly and never backwards, so both carry the other's trace id as an
        attribute too. What was not sampled goes on unsampled. Who records nothing passes on what came.
        """
        about = {} if workflow_id is None else {"bus.workflow_id": workflow_id}
        if name is not None:
            about["bus.workflow.name"] = name
        if self._recorder is None:
            return after
        first = TraceContext(trace_id, "", after.flags, without_length(after.state), after.baggage)
        if not after.is_sampled:
            return first._replace(span_id=_span_id())
        begun = self._record(
            "continue_workflow" if name is None else f"continue_workflow {name}",
            SpanKind.INTERNAL,
            first,
            ((after.trace_id, after.span_id),),
            {**about, "bus.trace.previous": after.trace_id},
        )
        context = begun.context
        assert context is not None
        begun.end()
        self._record(
            "workflow_continues",
            SpanKind.INTERNAL,
            after,
            ((trace_id, context.span_id),),
            {**about, "bus.trace.next": trace_id},
        ).end()
        return context

    def _record(
        self,
        name: str,
        kind: int,
        parent: TraceContext,
        links: tuple[tuple[str, str], ...],
        attributes: dict[str, Any],
        start_ns: int | None = None,
        common: CommonAttributes = NONE_IN_COMMON,
    ) -> Span:
        state = self._lengths.add(parent.trace_id, parent.state)
        record = SpanRecord(name, kind, parent.trace_id, _span_id(), parent.span_id, state, links, attributes, common)
        if start_ns is not None:
            record.start_ns = start_ns
        # The flags as they came: bit 2 says that the trace id is random, and holds for the whole trace.
        context = TraceContext(record.trace_id, record.span_id, parent.flags, state, parent.baggage)
        return Span(context, record, self._recorder)

    def passes(self, headers: Mapping[str, str]) -> bool:
        """Whether what comes with these headers is certainly not recorded here."""
        if self._recorder is None:
            return True
        traceparent = headers.get("traceparent", "")
        return len(traceparent) == PLAIN_LENGTH and traceparent[-1] in EVEN

    async def close(self) -> None:
        """Sends what is queued, within 5 s, then the metrics, within 1 s; a second call does nothing."""
        recorder, self._recorder = self._recorder, None
        export, self._metric_export = self._metric_export, None
        if recorder is not None:
            await asyncio.to_thread(recorder.close, CLOSE_S)
        if export is not None:
            await asyncio.to_thread(export.close, METRICS_CLOSE_S)


def _span_id() -> str:
    # Not zero, which means none. No secret, so no call into the system for it.
    return f"{random.getrandbits(64) or 1:016x}"
