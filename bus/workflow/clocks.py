"""Times of a message, by the server's clock.

The server says when a message and the record of its handling were stored; the replica says when the handler began,
by its own clock, and how long it ran. A handler cannot begin before its message was stored, nor after what it sent was
stored, nor can it end after its record was stored. What the replica says is moved into those bounds, so that
no time is ever negative, and marked where it was moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from bus.workflow.records import Attempt, Death

TOLERATED = timedelta(milliseconds=2)


@dataclass(frozen=True, slots=True)
class Timing:
    """When the last attempt began and ended, None where it is not known; see `Step` for the rest."""

    started_at: datetime | None
    ended_at: datetime | None
    waited_ms: float | None
    is_corrected: bool


def timing(
    stored_at: datetime, attempts: Sequence[Attempt], first_child_at: datetime | None, death: Death | None
) -> Timing:
    """The times of one message; `attempts` in order, `first_child_at` is when the first that it caused was stored."""
    if not attempts:
        if death is None:
            return Timing(None, None, None, False)
        ended_at = max(stored_at, death.stored_at)
        return Timing(None, ended_at, _ms(ended_at - stored_at), False)
    last, is_corrected = attempts[-1], False
    lower = stored_at
    started_at = ended_at = stored_at
    for attempt in attempts:
        length = timedelta(milliseconds=attempt.exec_ms)
        upper = attempt.recorded_at - length
        if attempt is last and len(attempts) == 1 and first_child_at is not None:
            upper = min(upper, first_child_at)
        # The lower bound wins where they cross: one server clock is compared with a length of the replica's.
        started_at = max(lower, min(attempt.started_at, upper))
        is_corrected = is_corrected or abs(started_at - attempt.started_at) > TOLERATED
        lower = ended_at = started_at + length
    earlier_ms = sum(one.exec_ms for one in attempts[:-1])
    waited_ms = max(0.0, _ms(started_at - stored_at) - earlier_ms)
    if death is not None and death.stored_at > ended_at and last.error is not None:
        # The letter of an older release does not tell its last attempt.
        ended_at = death.stored_at
    return Timing(started_at, ended_at, waited_ms, is_corrected)


def _ms(length: timedelta) -> float:
    return length.total_seconds() * 1000
