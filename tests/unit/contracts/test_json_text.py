"""SCH-1, SEC-7: the files of a catalogue are strict and bounded JSON."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.contracts.json_text import MAX_DEPTH, MAX_FILE_BYTES, NotJson, dump, parse

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES)
def test_what_is_written_is_read(value: object) -> None:
    assert parse(dump(value)) == value


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'{"a": 1,}', "line 1, column"),
        (b"", "not JSON"),
        (b'{"a": 1, "a": 2}', "'a' stands twice"),
        (b'{"a": {"b": 1, "b": 1}}', "'b' stands twice"),
        (b"NaN", "NaN is not JSON"),
        (b"[Infinity]", "Infinity"),
        (b'"\xff"', "not UTF-8"),
        (b'"\\ud800"', "surrogate"),
        (b'{"\\uDFFF": 1}', "surrogate"),
        (b"[" * (MAX_DEPTH + 1), "levels"),
        (b'{"a":' * 100_000, "levels"),
        (b" " * (MAX_FILE_BYTES + 1), "the limit is"),
        (b"1" * 5000, "not JSON"),
        (b'<<<<<<< HEAD\n{"a": 1}', "not JSON"),
    ],
)
def test_what_is_refused_says_why_in_one_line(data: bytes, says: str) -> None:
    with pytest.raises(NotJson) as refused:
        parse(data)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_brackets_in_strings_are_no_depth() -> None:
    assert parse(b'["' + b"[{" * 500 + b'\\"[[["]') == ["[{" * 500 + '"[[[']


def test_a_pair_of_surrogates_is_a_character() -> None:
    assert parse(b'"\\ud83d\\ude00"') == "😀"
