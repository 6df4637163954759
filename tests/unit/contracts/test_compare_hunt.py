"""SCH-2: a verdict holds against reality: another validator refutes no "compatible" (10,000 tries in `make soak`)."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bus.contracts.compare import compare
from tests.soak.schemas import Hunt

FIXED = 300


@pytest.mark.parametrize("start", range(0, FIXED, 100))
def test_no_counterexample_in_pairs_that_are_the_same_every_run(start: int) -> None:
    hunt = Hunt()
    assert [found for seed in range(start, start + 100) if (found := hunt.attempt(seed))] == []
    assert hunt.counts["values sent"] > 1000  # the hunt hunts
    assert hunt.counts["backward compatible"] > 30
    assert hunt.counts["backward breaking"] > 10


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(min_value=1_000_000))
def test_no_counterexample_in_new_pairs(seed: int) -> None:
    assert Hunt().attempt(seed) == ""


SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, 2.5]) | st.text("ab", max_size=2)
LEAVES = st.one_of(
    st.booleans(),
    st.builds(lambda kind: {"type": kind}, st.sampled_from(["string", "integer", "number", "null", "boolean"])),
    st.builds(lambda values: {"enum": values}, st.lists(SCALARS, min_size=1, max_size=4)),
    st.builds(lambda low: {"type": "number", "minimum": low}, st.integers(-2, 2)),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(
            lambda properties, required: {"type": "object", "properties": properties, "required": required},
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            st.lists(st.sampled_from("abc"), unique=True, max_size=2),
        ),
        st.builds(lambda items: {"type": "array", "items": items}, inner),
        st.builds(
            lambda word, members: {word: members},
            st.sampled_from(["anyOf", "allOf", "oneOf"]),
            st.lists(inner, min_size=1, max_size=3),
        ),
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(schema=SCHEMAS)
def test_every_schema_is_compatible_with_itself(schema: object) -> None:
    assert isinstance(schema, dict | bool)
    for strict in (True, False):
        found = compare(schema, schema, strict=strict)
        assert (found.compatible, found.changes) == (True, ())


@settings(max_examples=150, deadline=None)
@given(old=SCHEMAS, new=SCHEMAS)
def test_full_is_both_directions_and_they_mirror(old: object, new: object) -> None:
    assert isinstance(old, dict | bool)
    assert isinstance(new, dict | bool)
    there, back = compare(old, new, mode="backward"), compare(new, old, mode="forward")
    assert there.compatible == back.compatible
    full = compare(old, new)
    assert full.compatible == (there.compatible and compare(old, new, mode="forward").compatible)
    for change in (*full.changes, *there.changes):
        assert (change.severity == "error") == (change.breaks != "none")
        assert bool(change.mend) == (change.severity == "error")
