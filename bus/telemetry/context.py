"""Trace context: what travels in the headers `traceparent`, `tracestate` and `baggage` (W3C Trace Context)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import NamedTuple

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_is_w3c_trace_id = re.compile(r"(?!0{32})[0-9a-f]{32}").fullmatch
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


def w3c_trace_id(trace_id: str) -> str:
    """The envelope's trace id as a W3C one: itself, or for a foreign shape the start of its SHA-256."""
    if _is_w3c_trace_id(trace_id):
        return trace_id
    return hashlib.sha256(trace_id.encode()).hexdigest()[:32]


def unsampled_traceparent(trace_id: str) -> str:
    """The header of a root that nobody records. Its span id is half of the trace's: a new one would tell no more."""
    trace_id = w3c_trace_id(trace_id)
    span_id = trace_id[16:]
    return f"00-{trace_id}-{span_id if span_id != _NO_SPAN else trace_id[:16]}-00"


class TraceContext(NamedTuple):
    """One hop: the trace, the span that caused what follows, and its flags.

    A named tuple, because one is made for every message, also for those that nobody records.
    """

    trace_id: str
    span_id: str
    flags: str = "00"
    state: str = ""
    baggage: str = ""

    @property
    def is_sampled(self) -> bool:
        """Whether it is recorded: the lowest bit of the flags. There are others, so `01` is not the only yes."""
        return self.flags[1] in "13579bdf"

    @property
    def traceparent(self) -> str:
        """The header of this name."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"

    @classmethod
    def from_headers(cls, headers: Mapping[str, str]) -> TraceContext | None:
        """Reads the headers; a damaged `traceparent` counts as none, as the standard says."""
        traceparent = headers.get("traceparent")
        if not traceparent:
            return None
        found = _TRACEPARENT.fullmatch(traceparent)
        if found is None:
            return None
        version, trace_id, span_id, flags, more = found.groups()
        if version == "ff" or trace_id == _NO_TRACE or span_id == _NO_SPAN or (version == "00" and more):
            return None
        return cls(trace_id, span_id, flags, headers.get("tracestate", ""), headers.get("baggage", ""))

    def to_headers(self) -> dict[str, str]:
        """The headers for the next hop."""
        trace_id, span_id, flags, state, baggage = self
        headers = {"traceparent": f"00-{trace_id}-{span_id}-{flags}"}
        if state:
            headers["tracestate"] = state
        if baggage:
            headers["baggage"] = baggage
        return headers
