"""Settlement: what becomes of a delivery. Pure: an outcome, the attempt and the policy in, a verdict out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from bus.errors import ErrorInfo


class Verdict(Enum):
    """How a delivery is settled."""

    ACK = "ack"
    NAK = "nak"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Settlement:
    """The verdict; `delay_s` is the time until the next attempt of a nak."""

    verdict: Verdict
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how fast a failing message is tried again."""

    max_attempts: int = 5
    base_s: float = 0.5
    cap_s: float = 60.0


def decide(failure: ErrorInfo | None, *, attempt: int, policy: RetryPolicy, jitter: float) -> Settlement:
    """Decides from the failure (None: it was handled), the attempt (from 1) and `jitter` in [0, 1).

    Only what is retryable is tried again, after a full-jitter exponential delay and never earlier than the
    failure's `retry_after_ms`; everything else, and the last attempt, is a dead letter.
    """
    if failure is None:
        return Settlement(Verdict.ACK)
    if not failure.retryable or attempt >= policy.max_attempts:
        return Settlement(Verdict.DEAD)
    ceiling_s = min(policy.cap_s, policy.base_s * 2.0 ** min(attempt - 1, 32))
    asked_s = failure.details.get("retry_after_ms", 0) / 1000
    return Settlement(Verdict.NAK, delay_s=asked_s + ceiling_s * jitter)
