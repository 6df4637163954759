"""How long a trace has become, and what follows it (OBS-1)."""

from __future__ import annotations

import re

import pytest

from bus.telemetry import length
from bus.telemetry.length import TraceLengths, next_trace_id, without_length

TRACE = "0af7651916cd43dd8448eb211c80319c"


def test_it_counts_its_own_and_takes_over_a_higher_count() -> None:
    lengths = TraceLengths()
    assert lengths.add(TRACE, "") == "bus=1"
    assert lengths.add(TRACE, "vendor=x") == "bus=2,vendor=x"
    assert lengths.add(TRACE, "vendor=x, bus=40,other=y") == "bus=41,vendor=x,other=y"
    assert lengths.add(TRACE, "bus=7") == "bus=42"
    assert lengths.add("1" * 32, "") == "bus=1"


@pytest.mark.parametrize("state", ["bus=", "bus=x", "bus=-1", "bus=1e9", "bus=99999999999", "bus=²"])
def test_a_count_that_is_none_counts_as_none(state: str) -> None:
    assert TraceLengths().add(TRACE, state) == "bus=1"


def test_a_trace_is_full_at_its_limit() -> None:
    lengths = TraceLengths()
    lengths.add(TRACE, f"bus={length.MAX_SPANS - 2}")
    assert not lengths.is_full(TRACE)
    lengths.add(TRACE, "")
    assert lengths.is_full(TRACE)
    assert not lengths.is_full(next_trace_id(TRACE))


def test_the_oldest_counts_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(length, "TRACES_KEPT", 2)
    lengths = TraceLengths()
    lengths.add("a", f"bus={length.MAX_SPANS}")
    for other in ("b", "c"):
        lengths.add(other, "")
    assert not lengths.is_full("a")


def test_the_next_trace_is_the_same_for_everybody() -> None:
    assert next_trace_id(TRACE) == next_trace_id(TRACE) != TRACE
    assert re.fullmatch("[0-9a-f]{32}", next_trace_id(TRACE))
    assert without_length("bus=3,vendor=x") == "vendor=x"
