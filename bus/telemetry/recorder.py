"""The recorder: ended spans wait here and are exported in batches by a thread of their own."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

log = logging.getLogger("bus.telemetry")

QUEUE_SPANS = 65_536
BATCH_SPANS = 1024
INTERVAL_S = 0.5
TELL_EVERY_S = 60.0
# A receiver that does not answer is not waited for at the end.
CLOSE_FAILING_S = 1.0


class Counts(NamedTuple):
    """What became of the spans of one service: sent, lost, waiting to be sent."""

    exported: int
    dropped: int
    waiting: int


class CommonAttributes:
    """Attributes that many spans have in common. `encoded` is how an exporter has written them, for the next span."""

    __slots__ = ("encoded", "values")

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.encoded: Any = None


NONE_IN_COMMON = CommonAttributes({})


class SpanRecord:
    """One ended or running span. Times are epoch nanoseconds; ids are lower-case hex.

    `attributes` are those that it has beside the `common` ones.
    """

    __slots__ = (
        "attributes", "common", "end_ns", "error", "events", "kind", "links", "name", "parent_span_id", "span_id",
        "start_ns", "trace_id", "trace_state",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        kind: int,
        trace_id: str,
        span_id: str,
        parent_span_id: str,
        trace_state: str,
        links: tuple[tuple[str, str], ...],
        attributes: dict[str, Any],
        common: CommonAttributes = NONE_IN_COMMON,
    ) -> None:
        self.name = name
        self.kind = kind
        self.trace_id = trace_id
        self.span_id = span_id
        self.parent_span_id = parent_span_id
        self.trace_state = trace_state
        self.links = links
        self.attributes = attributes
        self.common = common
        self.events: list[tuple[int, str, dict[str, Any]]] = []
        self.error: str | None = None
        self.start_ns = time.time_ns()
        self.end_ns = 0


class Exporter(Protocol):
    """Where batches go. Called from the recorder's thread; returns whether the batch arrived."""

    def export(self, spans: list[SpanRecord]) -> bool: ...  # noqa: D102

    def close(self) -> None: ...  # noqa: D102


class Recorder:
    """Takes ended spans from any task and never waits. What does not fit, or does not arrive, is counted."""

    def __init__(self, exporter: Exporter) -> None:
        self._exporter = exporter
        self._waiting: deque[SpanRecord] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._is_failing = False
        self._is_given_up = False
        self._in_hand = 0
        self._told = 0
        self._told_at = float("-inf")
        self.dropped = 0
        self.exported = 0
        self._thread = threading.Thread(target=self._run, name="span export", daemon=True)
        self._thread.start()

    def add(self, span: SpanRecord) -> None:
        """Takes an ended span; drops it when the queue is full."""
        if len(self._waiting) >= QUEUE_SPANS:
            self.dropped += 1
            return
        self._waiting.append(span)
        if len(self._waiting) == BATCH_SPANS:
            self._wake.set()

    def counts(self) -> Counts:
        """How many were exported, dropped, and wait."""
        return Counts(self.exported, self.dropped, len(self._waiting))

    def close(self, timeout_s: float) -> None:
        """Exports what waits, within `timeout_s` (1 s when the receiver fails); blocks. What is left is counted."""
        self._closing = True
        self._wake.set()
        self._thread.join(min(timeout_s, CLOSE_FAILING_S) if self._is_failing else timeout_s)
        # The batch that the thread still tries to send counts as lost too: nobody will hear of it.
        self._is_given_up = True
        self.dropped += len(self._waiting) + self._in_hand
        if self.dropped:
            log.warning("%d spans were not exported (%d were)", self.dropped, self.exported)
        self._exporter.close()

    def _run(self) -> None:
        while not (self._closing and not self._waiting):
            self._wake.wait(INTERVAL_S)
            self._wake.clear()
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH_SPANS))]
                self._in_hand = len(batch)
                arrived = self._exporter.export(batch)
                if self._is_given_up:
                    return
                self._in_hand = 0
                self._is_failing = not arrived
                if arrived:
                    self.exported += len(batch)
                else:
                    self.dropped += len(batch)
                self._tell()

    def _tell(self) -> None:
        """A line of log for what was lost, once a minute at most."""
        lost = self.dropped - self._told
        if lost and time.monotonic() - self._told_at > TELL_EVERY_S:
            self._told, self._told_at = self.dropped, time.monotonic()
            log.warning("%d spans were lost, %d waiting; bus doctor shows who loses them", lost, len(self._waiting))
