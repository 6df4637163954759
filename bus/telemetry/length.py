"""The length of a trace: how many spans it has, as far as this service can know, and which trace comes after it.

Nobody sees a whole trace, so the count is kept as a logical clock keeps time: every service counts the spans that it
adds and takes over a higher count when it hears of one, in the member `bus` of `tracestate`. It is never more than the
trace has, and at least what the busiest service has added.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

MAX_SPANS = 2000
TRACES_KEPT = 4096

_MEMBER = "bus="
_MAX_DIGITS = 9


class TraceLengths:
    """The counts of the traces that one service has last added to, 4,096 of them."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: OrderedDict[str, int] = OrderedDict()

    def add(self, trace_id: str, state: str) -> str:
        """Counts one span more; `state` is the `tracestate` that came in. Returns the one to pass on."""
        heard, others = _split(state)
        counts = self._counts
        known = counts.get(trace_id)
        length = max(known or 0, heard) + 1
        counts[trace_id] = length
        if known is not None:
            counts.move_to_end(trace_id)
        elif len(counts) > TRACES_KEPT:
            counts.popitem(last=False)
        return f"{_MEMBER}{length},{others}" if others else f"{_MEMBER}{length}"

    def is_full(self, trace_id: str) -> bool:
        """Whether what comes next belongs into the next trace."""
        return self._counts.get(trace_id, 0) >= MAX_SPANS


def without_length(state: str) -> str:
    """A `tracestate` for another trace: what other parties wrote into it."""
    return _split(state)[1]


def next_trace_id(trace_id: str) -> str:
    """The trace after this one. Derived, so that all services leave a long trace for the same one."""
    return hashlib.sha256(f"next {trace_id}".encode()).hexdigest()[:32]


def _split(state: str) -> tuple[int, str]:
    """The count in a `tracestate` (0: none that can be read) and the other members as they are."""
    if not state:
        return 0, ""
    if _MEMBER not in state:
        return 0, state
    if (digits := state[len(_MEMBER) :]).isascii() and digits.isdigit() and state.startswith(_MEMBER):
        return int(digits) if len(digits) <= _MAX_DIGITS else 0, ""
    count, others = 0, []
    for member in state.split(","):
        bare = member.strip()
        if not bare.startswith(_MEMBER):
            others.append(member)
        elif (digits := bare[len(_MEMBER) :]).isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS:
            count = int(digits)
    return count, ",".join(others)
