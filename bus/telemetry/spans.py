"""Spans: one for each send, process and dead letter, exported over OTLP when an endpoint is set.

Without an endpoint nothing of the SDK is loaded and a span costs an object; the context that came in is
passed on unchanged. What the attributes mean: `schemas/README.md`, section Tracing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.span import TraceState

from bus.telemetry.context import TraceContext, w3c_trace_id

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

log = logging.getLogger("bus.telemetry")

QUEUE_SPANS = 32_768
SHUTDOWN_S = 5.0

Attributes = Mapping[str, str | int | float | bool]


class Span:
    """One operation. `context` is what messages sent inside it carry; None when there is nothing to carry."""

    __slots__ = ("_span", "context")

    def __init__(self, context: TraceContext | None, span: trace.Span | None = None) -> None:
        self.context = context
        self._span = span

    @property
    def is_recording(self) -> bool:
        """Whether attributes are kept; build them only then."""
        return self._span is not None and self._span.is_recording()

    def set(self, attributes: Attributes) -> None:
        """Adds attributes."""
        if self._span is not None:
            self._span.set_attributes(dict(attributes))

    def event(self, name: str, attributes: Attributes) -> None:
        """Adds something that happened at this moment."""
        if self._span is not None:
            self._span.add_event(name, dict(attributes))

    def fail(self, code: str, message: str) -> None:
        """Marks the span as failed with an error code of the error table."""
        if self._span is not None:
            self._span.set_attribute("error.type", code)
            self._span.set_status(Status(StatusCode.ERROR, message))

    def end(self) -> None:
        """Ends it; a second call does nothing."""
        if self._span is not None:
            self._span.end()
            self._span = None


class Telemetry:
    """The spans of one service: every agent has its own, also when several share a process."""

    def __init__(self, service: str, *, namespace: str) -> None:
        self._provider = _provider(service, namespace) if _endpoint_is_set() else None
        self._tracer = self._provider.get_tracer("envelope-bus") if self._provider is not None else None

    @property
    def is_exporting(self) -> bool:
        """Whether spans leave this process."""
        return self._tracer is not None

    def start(
        self,
        name: str,
        kind: SpanKind,
        *,
        trace_id: str,
        parent: TraceContext | None,
        link_parent: bool = False,
        attributes: Attributes | None = None,
    ) -> Span:
        """Starts a span below `parent`; without a parent it is a root of the trace `trace_id`.

        `link_parent` adds the parent as a link too. `attributes` should hold what a sampler decides on.
        """
        if self._tracer is None or self._provider is None:
            return Span(parent)
        links = []
        context = Context()
        if parent is not None:
            remote = SpanContext(
                int(parent.trace_id, 16),
                int(parent.span_id, 16),
                is_remote=True,
                trace_flags=TraceFlags(int(parent.flags, 16)),
                trace_state=TraceState.from_header([parent.state]) if parent.state else None,
            )
            context = trace.set_span_in_context(NonRecordingSpan(remote), context)
            links = [Link(remote)] if link_parent else []
        else:
            _force_trace_id(self._provider, int(w3c_trace_id(trace_id), 16))
        span = self._tracer.start_span(
            name, context, kind, attributes=dict(attributes) if attributes else None, links=links
        )
        own = span.get_span_context()
        return Span(
            TraceContext(
                f"{own.trace_id:032x}",
                f"{own.span_id:016x}",
                f"{own.trace_flags:02x}",
                own.trace_state.to_header() if own.trace_state else "",
                parent.baggage if parent is not None else "",
            ),
            span,
        )

    async def close(self) -> None:
        """Sends what is queued, within 5 s."""
        if self._provider is None:
            return
        provider, self._provider, self._tracer = self._provider, None, None
        try:
            await asyncio.wait_for(asyncio.to_thread(provider.shutdown), SHUTDOWN_S)
        except TimeoutError:
            log.warning("spans that were not exported within %.0f s are lost", SHUTDOWN_S)


def _endpoint_is_set() -> bool:
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return any(os.environ.get(name) for name in names) and os.environ.get("OTEL_SDK_DISABLED", "").lower() != "true"


def _provider(service: str, namespace: str) -> TracerProvider | None:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        log.warning("an OTLP endpoint is set, but spans cannot be sent: pip install 'envelope-bus[otlp]'")
        return None
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from bus.telemetry.ids import TraceIds

    resource = Resource.create(
        {
            "service.name": service,
            "service.namespace": namespace,
            "service.instance.id": str(uuid.uuid4()),
            "host.name": socket.gethostname(),
        }
    )
    provider = TracerProvider(resource=resource, id_generator=TraceIds(), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), max_queue_size=QUEUE_SPANS))
    return provider


def _force_trace_id(provider: TracerProvider, trace_id: int) -> None:
    from bus.telemetry.ids import TraceIds

    if isinstance(provider.id_generator, TraceIds):
        provider.id_generator.next_trace_id = trace_id
