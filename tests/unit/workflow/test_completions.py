"""Completions round trip, and garbage is refused with ValueError only."""

from datetime import UTC, datetime

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.workflow.completions import Completion, FailedAttempt, decode, decode_all, decode_identities, encode

FAILED = FailedAttempt("a", "1", "wf", 2, datetime(2026, 1, 1, tzinfo=UTC), 1.5, 250.0, "tool.timeout", "too slow")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["completed", "from", "message_id"]), inner),
)


def test_round_trip() -> None:
    group = [Completion("a", str(n), None, n, datetime(2026, 1, 1, tzinfo=UTC), 1.5) for n in range(3)]
    assert decode(encode(group)) == group


def test_failed_attempts_travel_beside_the_completions() -> None:
    """A reader of completions does not take a failed attempt for one: it would be a lost message."""
    data = encode([], [FAILED])
    assert decode_all(data) == ([], [FAILED])
    assert decode(data) == []
    assert decode_identities(data) == []


@given(st.binary() | json_values.map(lambda value: orjson.dumps(value)))
def test_garbage_is_a_value_error(data: bytes) -> None:
    try:
        decode(data)
    except ValueError:
        return
    assert not orjson.loads(data)["completed"]


def test_an_incomplete_record_is_refused() -> None:
    with pytest.raises(ValueError, match="not completions"):
        decode(b'{"completed": [{"from": "a"}]}')
