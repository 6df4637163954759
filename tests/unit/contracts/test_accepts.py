"""What a sender makes of what receivers accept (REG-9)."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from bus.contracts.accepts import Accepts, agreed

MAJORS = st.frozensets(st.integers(0, 6))
REPLICA = st.builds(
    Accepts,
    envelopes=st.frozensets(st.sampled_from(["1.2", "1.3"])),
    majors=st.dictionaries(st.sampled_from(["note", "other"]), st.none() | MAJORS),
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["envelopes", "types", "majors", "schema", "note"]), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(ours=st.lists(st.integers(0, 6), min_size=1, unique=True), theirs=st.lists(REPLICA))
def test_what_is_agreed_can_be_read(ours: list[int], theirs: list[Accepts]) -> None:
    """The best that all accept, else the best that one accepts, else nothing; who does not handle it has no say."""
    voices = [one.majors["note"] for one in theirs if "note" in one.majors]
    readers = {n: sum(majors is None or n in majors for majors in voices) for n in ours}
    major = agreed(ours, theirs, "note")
    if major is None:
        assert voices
        assert not any(readers.values())
    else:
        by_all = [n for n in ours if readers[n] == len(voices)]
        assert major == (by_all or [n for n in ours if readers[n]])[0]


@given(REPLICA)
def test_what_is_written_is_read_again(accepts: Accepts) -> None:
    assert Accepts.from_wire(orjson.loads(orjson.dumps(accepts.to_wire()))) == accepts


@given(ANYTHING)
def test_whatever_stands_in_a_lease_is_read(value: Any) -> None:
    """Any program may write one: what makes no sense counts as not said."""
    accepts = Accepts.from_wire(value)
    assert accepts.takes("absent", 1) is None
    agreed([1], [accepts], "note")
