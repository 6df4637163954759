"""Settlement: what becomes of a delivery. Pure: an outcome, the attempt and the policy in, a verdict out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from bus.errors import ErrorInfo, kind

BROKER = "broker."
MAX_ASKED_S = 86400.0


class Verdict(Enum):
    """How a delivery is settled. `leave`: not at all, it comes again after its ack wait."""

    ACK = "ack"
    NAK = "nak"
    DEAD = "dead"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class Settlement:
    """The verdict; `delay_s` is the time until the next attempt of a nak."""

    verdict: Verdict
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how fast a failing message is tried again.

    The delay before attempt n+1 is drawn from 0 to `base_s * 2**(n-1)`, at most `cap_s` (with `jitter=False` it is that
    bound itself), and comes on top of what the failure asks for (`retry_after_ms`). No attempt begins later than
    `max_age_s` after the message was stored. `by_code` holds other policies for single error codes.
    Raises ValueError for values that make no sense and KeyError for a code that the error table does not have.
    """

    max_attempts: int = 5
    base_s: float = 0.5
    cap_s: float = 60.0
    jitter: bool = True
    max_age_s: float | None = None
    by_code: Mapping[str, RetryPolicy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_attempts < 1 or self.base_s < 0 or self.cap_s < 0 or (self.max_age_s or 0) < 0:
            raise ValueError(f"{self} makes no sense: attempts from 1, seconds from 0")
        object.__setattr__(self, "by_code", {kind(code).code: policy for code, policy in self.by_code.items()})

    def for_code(self, code: str) -> RetryPolicy:
        """The policy for one error code."""
        return self.by_code.get(code, self)


def decide(
    failure: ErrorInfo | None, *, attempt: int, policy: RetryPolicy, jitter: float, age_s: float = 0.0
) -> Settlement:
    """Decides from the failure (None: it was handled), the attempt (from 1), `jitter` in [0, 1) and the age.

    Only what is retryable is tried again; everything else, the last attempt, and what would be too old by then is
    a dead letter. A broker that is away or full never makes a dead letter.
    """
    if failure is None:
        return Settlement(Verdict.ACK)
    policy = policy.for_code(failure.code)
    if failure.code.startswith(BROKER) and failure.retryable:
        # Not the message's fault: it is never given up for a broker that is away or full.
        return Settlement(Verdict.NAK, delay_s=min(policy.cap_s, policy.base_s * 2.0 ** min(attempt - 1, 32)) * jitter)
    if not failure.retryable or attempt >= policy.max_attempts:
        return Settlement(Verdict.DEAD)
    ceiling_s = min(policy.cap_s, policy.base_s * 2.0 ** min(attempt - 1, 32))
    asked_s = min((failure.retry_after_ms or 0) / 1000, MAX_ASKED_S)
    delay_s = asked_s + ceiling_s * (jitter if policy.jitter else 1.0)
    if policy.max_age_s is not None and age_s + delay_s > policy.max_age_s:
        return Settlement(Verdict.DEAD)
    return Settlement(Verdict.NAK, delay_s=delay_s)
