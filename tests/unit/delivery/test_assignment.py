"""`--set PATH=JSON`: every place of every document can be named, and nothing else is touched (DEL-4)."""

import contextlib
import copy
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.delivery.assignment import Assignment, render_path

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
)
OBJECTS = st.dictionaries(st.text(max_size=5), DOCUMENTS, min_size=1, max_size=5)


def places(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every place of a document, its top excepted."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [one for key, below in inner for one in [(*path, str(key)), *places(below, (*path, str(key)))]]


def at(document: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        document = document[int(part) if isinstance(document, list) else part]
    return document


@given(document=OBJECTS, value=DOCUMENTS, data=st.data())
def test_every_place_can_be_set_and_nothing_else_changes(document: Any, value: Any, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(places(document)))
    before = copy.deepcopy(document)
    after = Assignment.parse(f"{render_path(path)}={json.dumps(value)}").apply(document)
    assert at(after, path) == value
    for other in places(before):
        if other[: len(path)] != path and path[: len(other)] != other:
            assert at(after, other) == at(before, other)
    restored = Assignment(path, at(before, path)).apply(after)
    assert restored == before


@given(st.lists(st.text(max_size=6), min_size=1, max_size=6), DOCUMENTS)
def test_a_rendered_path_reads_back(parts: list[str], value: Any) -> None:
    read = Assignment.parse(f"{render_path(tuple(parts))}={json.dumps(value)}")
    assert (read.path, read.value) == (tuple(parts), value)


@given(st.text(max_size=30), DOCUMENTS)
def test_any_text_is_an_assignment_or_a_clear_refusal(text: str, document: Any) -> None:
    with contextlib.suppress(ValueError):
        json.dumps(Assignment.parse(text).apply({"payload": document}))


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        ("payload.x=1", {}, {"payload": {"x": 1}}),
        ("payload.a.b.c=null", {"payload": {}}, {"payload": {"a": {"b": {"c": None}}}}),
        ("payload.items.1=2", {"payload": {"items": [1]}}, {"payload": {"items": [1, 2]}}),
        ("payload.items.0.n=2", {"payload": {"items": []}}, {"payload": {"items": [{"n": 2}]}}),
        ('payload={"x": "a=b.c"}', {"payload": 7}, {"payload": {"x": "a=b.c"}}),
        (r"extensions.a\.b=true", {"extensions": {}}, {"extensions": {"a.b": True}}),
        ("payload.n=123456789012345678901234567890", {}, {"payload": {"n": 123456789012345678901234567890}}),
    ],
)
def test_examples(text: str, before: Any, after: Any) -> None:
    assert Assignment.parse(text).apply(before) == after


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("payload.x", "is not PATH=JSON"),
        ("", "is not PATH=JSON"),
        ("payload.x=hello", r"""'payload.x="hello"'"""),
        ("payload.x=", "not JSON"),
        ("payload.items.3=1", "an index from 0 to 1"),
        ("payload.items.-1=1", "payload.items is a list of 1"),
        ("payload.items.x=1", "payload.items is a list of 1"),
        ("payload.n.x=1", "payload.n is no object and no list but int"),
        ("payload.none.x=1", "but null"),
    ],
)
def test_refusals_name_the_place(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        Assignment.parse(text).apply({"payload": {"items": [0], "n": 1, "none": None}})
