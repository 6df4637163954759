"""Settlement is pure: DEL-3, never a blind retry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.delivery.settlement import RetryPolicy, Verdict, decide
from bus.errors import TABLE, ErrorInfo, RetryLater

POLICY = RetryPolicy(max_attempts=5, base_s=0.5, cap_s=60)


def test_success_is_acknowledged() -> None:
    assert decide(None, attempt=99, policy=POLICY, jitter=0.5).verdict is Verdict.ACK


@given(
    code=st.sampled_from(sorted(TABLE)),
    attempt=st.integers(1, 500),
    jitter=st.floats(0, 1, exclude_max=True),
    after_ms=st.none() | st.integers(0, 100_000),
)
def test_only_retryable_failures_come_again_and_only_so_often(
    code: str, attempt: int, jitter: float, after_ms: int | None
) -> None:
    details = {} if after_ms is None else {"retry_after_ms": after_ms}
    failure = ErrorInfo(code, "no", details, retryable=TABLE[code].retryable)
    settled = decide(failure, attempt=attempt, policy=POLICY, jitter=jitter)
    if failure.code.startswith("broker."):
        # Never the message's fault, so never the end of it.
        assert settled.verdict is Verdict.NAK
        return
    if not failure.retryable or attempt >= POLICY.max_attempts:
        assert settled.verdict is Verdict.DEAD
        return
    assert settled.verdict is Verdict.NAK
    asked_s = (after_ms or 0) / 1000
    assert asked_s <= settled.delay_s <= asked_s + min(POLICY.cap_s, POLICY.base_s * 2 ** (attempt - 1))


def test_policies_for_single_codes_and_for_age() -> None:
    policy = RetryPolicy(
        max_attempts=3, jitter=False, base_s=1, max_age_s=100, by_code={"rate_limited": RetryPolicy(max_attempts=9)}
    )
    limited = ErrorInfo("upstream.rate_limit", "slow down", {"retry_after_ms": 500}, retryable=True)
    failed = ErrorInfo("upstream.failed", "down", retryable=True)
    assert decide(limited, attempt=8, policy=policy, jitter=0.0).delay_s == 0.5
    assert decide(failed, attempt=2, policy=policy, jitter=0.0).delay_s == 2
    assert decide(failed, attempt=3, policy=policy, jitter=0.0).verdict is Verdict.DEAD
    assert decide(failed, attempt=2, policy=policy, jitter=0.0, age_s=97).verdict is Verdict.NAK
    assert decide(failed, attempt=2, policy=policy, jitter=0.0, age_s=99).verdict is Verdict.DEAD


def test_policies_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="attempts"):
        RetryPolicy(max_attempts=0)
    with pytest.raises(KeyError, match="nonsense"):
        RetryPolicy(by_code={"nonsense": RetryPolicy()})


def test_the_handler_may_ask_for_a_retry_of_what_is_not_retryable_by_itself() -> None:
    settled = decide(RetryLater(2.0).info, attempt=1, policy=POLICY, jitter=0.0)
    assert (settled.verdict, settled.delay_s) == (Verdict.NAK, 2.0)
