"""What a delivery counts as in the metrics."""

from __future__ import annotations

from bus.delivery.settlement import Settlement, Verdict
from bus.envelope import Envelope
from bus.errors import ErrorInfo
from bus.telemetry import metrics
from bus.telemetry.metrics import OTHER, Deliveries


def count_settled(
    deliveries: Deliveries,
    envelope: Envelope | None,
    settlement: Settlement,
    failure: ErrorInfo | None,
    *,
    is_duplicate: bool,
    seconds: float | None,
) -> None:
    """Counts a delivery that the pipeline has settled itself; `seconds` is None when no handler ran."""
    code = failure.code if failure is not None else ""
    if settlement.verdict is Verdict.DEAD:
        outcome = metrics.REFUSED if seconds is None else metrics.DEAD
    elif settlement.verdict is Verdict.NAK:
        outcome = metrics.HELD if failure is None else metrics.RETRY
    elif settlement.verdict is Verdict.LEAVE:
        outcome = metrics.LEFT
    else:
        outcome = metrics.DUPLICATE if is_duplicate else metrics.ACK
    count(deliveries, envelope, outcome, code, seconds)


def count(
    deliveries: Deliveries, envelope: Envelope | None, outcome: str, code: str = "", seconds: float | None = None
) -> None:
    """Counts one delivery; `envelope` is None for bytes that could not be read."""
    if envelope is None:
        deliveries.settled(OTHER, None, outcome, code, seconds)
    else:
        deliveries.settled(envelope.type, envelope.phase, outcome, code, seconds)
