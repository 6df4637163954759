"""Trace ids for root spans: the envelope already has one, and the root of its trace must use it."""

from __future__ import annotations

from opentelemetry.sdk.trace.id_generator import RandomIdGenerator


class TraceIds(RandomIdGenerator):
    """Random ids, except that the next root uses `next_trace_id` when it is set."""

    def __init__(self) -> None:
        self.next_trace_id: int | None = None

    def generate_trace_id(self) -> int:
        """The given id once, then random ones."""
        given, self.next_trace_id = self.next_trace_id, None
        return given if given is not None else super().generate_trace_id()
