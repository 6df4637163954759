"""Trace context: what travels in the headers `traceparent`, `tracestate` and `baggage` (W3C Trace Context)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_W3C_TRACE_ID = re.compile(r"[0-9a-f]{32}")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


def w3c_trace_id(trace_id: str) -> str:
    """The envelope's trace id as a W3C one: itself, or for a foreign shape the start of its SHA-256."""
    if _W3C_TRACE_ID.fullmatch(trace_id) and trace_id != _NO_TRACE:
        return trace_id
    return hashlib.sha256(trace_id.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class TraceContext:
    """One hop: the trace, the span that caused what follows, and its flags."""

    trace_id: str
    span_id: str
    flags: str = "00"
    state: str = ""
    baggage: str = ""

    @property
    def is_sampled(self) -> bool:
        """Whether it is recorded: the lowest bit of the flags. There are others, so `01` is not the only yes."""
        return int(self.flags, 16) & 1 == 1

    @property
    def traceparent(self) -> str:
        """The header of this name."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"

    @classmethod
    def from_headers(cls, headers: Mapping[str, str]) -> TraceContext | None:
        """Reads the headers; a damaged `traceparent` counts as none, as the standard says."""
        found = _TRACEPARENT.fullmatch(headers.get("traceparent", ""))
        if found is None or found[1] == "ff" or found[2] == _NO_TRACE or found[3] == _NO_SPAN:
            return None
        if found[1] == "00" and found[5]:
            return None
        return cls(found[2], found[3], found[4], headers.get("tracestate", ""), headers.get("baggage", ""))

    def to_headers(self) -> dict[str, str]:
        """The headers for the next hop."""
        headers = {"traceparent": self.traceparent}
        if self.state:
            headers["tracestate"] = self.state
        if self.baggage:
            headers["baggage"] = self.baggage
        return headers
