"""Failed attempts: what is recorded of one that is going to be tried again."""

from __future__ import annotations

from datetime import UTC, datetime

from bus.broker.pull import Delivery
from bus.delivery.letter import attempts_before
from bus.delivery.settlement import Settlement
from bus.envelope import Envelope
from bus.errors import ErrorInfo
from bus.text import one_line
from bus.workflow.completions import FailedAttempt

MAX_MESSAGE_CHARS = 500


def failed_attempt(
    delivery: Delivery,
    envelope: Envelope | None,
    started_at: datetime | None,
    failure: ErrorInfo,
    settlement: Settlement,
) -> FailedAttempt | None:
    """The record of it, or None where there is none.

    `started_at` is when the handler began, None when it did not. Nothing is recorded of a message that
    cannot be read, which is never tried again, nor of a broker that is away: the record would wait for it,
    and a delivery should be given back as soon as it can be.
    """
    if envelope is None or failure.code == "broker.unavailable":
        return None
    now = datetime.now(UTC)
    started_at = started_at or now
    return FailedAttempt(
        envelope.sender,
        envelope.message_id,
        envelope.workflow_id,
        attempts_before(delivery.headers) + delivery.attempt,
        started_at,
        round(max(0.0, (now - started_at).total_seconds() * 1000), 3),
        round(settlement.delay_s * 1000, 3),
        failure.code,
        one_line(failure.message, MAX_MESSAGE_CHARS),
    )
