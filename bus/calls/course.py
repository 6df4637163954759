"""The course of a streamed call: its span and its figures, which end with the stream and not with its acceptance."""

from __future__ import annotations

import time

from bus.errors import ErrorInfo
from bus.telemetry.call_metrics import CallMetrics
from bus.telemetry.spans import Span


class Course:
    """From the request to the end of what its reader reads; nothing is counted where nobody began to read."""

    __slots__ = ("_began", "_capability", "_metrics", "span")

    def __init__(self, metrics: CallMetrics, capability: str) -> None:
        self.span: Span | None = None
        self._metrics = metrics
        self._capability = capability
        self._began: float | None = None

    def begin(self) -> None:
        """It is asked for now."""
        self._began = time.perf_counter()

    def end(self, failure: ErrorInfo | None) -> None:
        """The stream is over; a second call does nothing."""
        began, self._began = self._began, None
        if began is None:
            return
        self._metrics.asked(self._capability, "" if failure is None else failure.code, time.perf_counter() - began)
        if self.span is not None:
            if failure is not None:
                self.span.fail(failure.code, failure.message)
            self.span.end()
