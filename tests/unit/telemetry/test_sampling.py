"""Sampling by the standard variables (OBS-2, OBS-1)."""

import pytest

from bus.telemetry.sampling import is_sampled, ratio


@pytest.mark.parametrize(
    ("environment", "share"),
    [
        ({}, 1.0),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, 0.0),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_on"}, 1.0),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"}, 0.25),
        ({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}, 1.0),
    ],
)
def test_shares(environment: dict[str, str], share: float) -> None:
    assert ratio(environment) == share


@pytest.mark.parametrize(
    "environment",
    [{"OTEL_TRACES_SAMPLER": "jaeger_remote"}, {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"}],
)
def test_wrong_values_are_refused_by_name(environment: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="OTEL_TRACES_SAMPLER"):
        ratio(environment)


def test_the_decision_is_stable_and_near_its_share() -> None:
    keys = [f"workflow {number}" for number in range(10_000)]
    chosen = {key for key in keys if is_sampled(key, 0.1)}
    assert 800 < len(chosen) < 1200
    assert chosen <= {key for key in keys if is_sampled(key, 0.2)}
    assert not any(is_sampled(key, 0.0) for key in keys)
    assert all(is_sampled(key, 1.0) for key in keys)
