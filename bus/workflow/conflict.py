"""Conflicts: two wrote at once, and the one who came second hears of both (WF-3)."""

from __future__ import annotations

from typing import NamedTuple

from bus.broker.records import Record
from bus.errors import BusError, error


class Stand(NamedTuple):
    """Who wanted to write, and the revision that they had read."""

    writer: str
    revision: int


def conflict(what: str, found: Record, ours: Stand) -> BusError:
    """The error: ToolError `tool.execution_failed`, retryable, because it may go well on what is there now."""
    at = f" at {found.written_at:%H:%M:%S.%f}"[:-3] if found.written_at is not None else ""
    deed = "took away" if found.value is None else "wrote"
    theirs = found.writer or "somebody without a name"
    return error(
        "tool.execution_failed",
        f"conflict on {what}: {theirs} {deed} revision {found.revision}{at}, while {ours.writer} expected revision "
        f"{ours.revision}; read it again and decide on what is there",
        retryable=True,
        reason="conflict",
        theirs={"writer": found.writer, "revision": found.revision},
        ours={"writer": ours.writer, "revision": ours.revision},
    )
