"""Spans: one for each send, process and dead letter, exported over OTLP when an endpoint is set.

Without an endpoint, and for what is not sampled, a span costs an object, and the context that came in is passed on
unchanged. What the attributes mean: `schemas/README.md`, section Tracing.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from enum import IntEnum

from bus.telemetry import sampling
from bus.telemetry.context import TraceContext, w3c_trace_id
from bus.telemetry.otlp import OtlpJsonExporter, endpoint
from bus.telemetry.recorder import Recorder, SpanRecord

CLOSE_S = 5.0
SAMPLED = "01"
UNSAMPLED = "00"
# A traceparent of version 00; the last bit of its flags says whether it is sampled.
PLAIN_LENGTH = 55
EVEN = "02468ace"

Attributes = Mapping[str, str | int | float | bool]


class SpanKind(IntEnum):
    """The kinds of OTLP."""

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

    def set(self, attributes: Attributes) -> None:
        """Adds attributes."""
        if self._record is not None:
            self._record.attributes.update(attributes)

    def event(self, name: str, attributes: Attributes) -> None:
        """Adds something that happened at this moment."""
        if self._record is not None:
            self._record.events.append((time.time_ns(), name, dict(attributes)))

    def fail(self, code: str, message: str) -> None:
        """Marks the span as failed with an error code of the error table."""
        if self._record is not None:
            self._record.attributes["error.type"] = code
            self._record.error = message

    def end(self) -> None:
        """Ends it; a second call does nothing."""
        if self._record is not None and self._recorder is not None:
            self._record.end_ns = time.time_ns()
            self._recorder.add(self._record)
            self._record = None


class PassingSpan(Span):
    """An operation that is not recorded, below one that is not either: it passes on the context that came in."""

    __slots__ = ("_headers",)

    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__(None)
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
        self._recorder: Recorder | None = None
        self._share = sampling.ratio()
        if (url := endpoint()) is not None:
            resource = {
                "service.name": service,
                "service.namespace": namespace,
                "service.instance.id": str(uuid.uuid4()),
                "host.name": socket.gethostname(),
                "telemetry.sdk.language": "python",
            }
            self._recorder = Recorder(OtlpJsonExporter(url, resource))

    def start(
        self,
        name: Callable[[], str],
        kind: SpanKind,
        *,
        trace_id: str,
        parent: TraceContext | None,
        sampling_key: str,
        link_parent: bool = False,
        attributes: Callable[[], dict[str, str | int | float | bool]],
    ) -> Span:
        """Starts a span below `parent`; without a parent it is a root of the trace `trace_id`.

        A root is recorded by the share of `sampling_key`, everything below as its parent. `name` and `attributes`
        are called only for what is recorded. `link_parent` adds the parent as a link too.
        """
        if self._recorder is None:
            return Span(parent)
        if parent is not None:
            if not int(parent.flags, 16) & 1:
                return Span(parent)
        elif not sampling.is_sampled(sampling_key, self._share):
            return Span(TraceContext(w3c_trace_id(trace_id), _span_id(), UNSAMPLED))
        record = SpanRecord(
            name(),
            kind,
            parent.trace_id if parent is not None else w3c_trace_id(trace_id),
            _span_id(),
            parent.span_id if parent is not None else "",
            parent.state if parent is not None else "",
            ((parent.trace_id, parent.span_id),) if parent is not None and link_parent else (),
            attributes(),
        )
        context = TraceContext(
            record.trace_id, record.span_id, SAMPLED, record.trace_state, parent.baggage if parent is not None else ""
        )
        return Span(context, record, self._recorder)

    def passes(self, headers: Mapping[str, str]) -> bool:
        """Whether what comes with these headers is certainly not recorded here."""
        traceparent = headers.get("traceparent", "")
        return self._recorder is None or (len(traceparent) == PLAIN_LENGTH and traceparent[-1] in EVEN)

    async def close(self) -> None:
        """Sends what is queued, within 5 s; a second call does nothing."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            await asyncio.to_thread(recorder.close, CLOSE_S)


def _span_id() -> str:
    return os.urandom(8).hex()
