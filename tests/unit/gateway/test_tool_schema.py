"""Schemas as the providers take them: the same meaning or a looser one, never a tighter one (TOOL-4)."""

from __future__ import annotations

import re
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.gateway.tool_schema import fitted

NAMES = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
INTEGER = {"type": "integer"}


def test_a_plain_schema_is_not_changed() -> None:
    """TOOL-4."""
    schema = {"type": "object", "properties": {"a": INTEGER}, "required": ["a"], "additionalProperties": False}
    assert fitted(schema, NAMES).schema == schema
    assert fitted(schema, NAMES).notes == ()


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf", "allOf", "not", "enum"])
def test_no_choice_is_left_on_the_top(keyword: str) -> None:
    """TOOL-4: what the APIs refuse there; the rule is told in words."""
    branches: Any = [{"properties": {"a": INTEGER}, "required": ["a"]}, {"properties": {"b": INTEGER}}]
    value = {"not": {"required": ["a", "b"]}, "enum": [{"a": 1}]}.get(keyword, branches)
    found = fitted({"type": "object", keyword: value})
    assert keyword not in found.schema
    assert keyword in found.told
    assert len(found.notes) == 1
    if keyword in ("anyOf", "oneOf", "allOf"):
        assert set(found.schema["properties"]) == {"a", "b"}
    assert found.schema.get("required", []) == (["a"] if keyword == "allOf" else [])


def test_a_reference_on_the_top_is_put_in_its_place() -> None:
    """TOOL-4."""
    schema = {"$ref": "#/$defs/Sum", "$defs": {"Sum": {"type": "object", "properties": {"a": INTEGER}}}}
    found = fitted(schema).schema
    assert (found["type"], found["properties"]) == ("object", {"a": INTEGER})


def test_forms_that_are_refused_are_written_otherwise() -> None:
    """TOOL-4: the same meaning."""
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "https://example.org/x",
        "properties": {
            "any": True,
            "none": False,
            "list": {"type": "array"},
            "pair": {"type": "array", "items": [INTEGER, {"type": "string"}], "additionalItems": False},
        },
    }
    assert fitted(schema).schema == {
        "type": "object",
        "properties": {
            "any": {},
            "none": {"not": {}},
            "list": {"type": "array", "items": {}},
            "pair": {"type": "array", "prefixItems": [INTEGER, {"type": "string"}], "items": {"not": {}}},
        },
    }


def test_names_that_a_provider_does_not_take() -> None:
    """TOOL-4: left out where that is possible, and told."""
    schema = {"type": "object", "properties": {"größe": INTEGER, "a": INTEGER}}
    found = fitted(schema, NAMES)
    assert set(found.schema["properties"]) == {"a"}
    assert "größe" in found.notes[0]
    with pytest.raises(ValueError, match="größe is required"):
        fitted({**schema, "required": ["größe"]}, NAMES)


def test_a_schema_without_end_or_bottom_is_cut() -> None:
    """SEC-7."""
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(100):
        deep = {"type": "object", "properties": {"below": deep}}
    assert "nested deeper" in fitted(deep).notes[0]
    assert fitted({"$ref": "#"}).schema == {"type": "object", "properties": {}}


parts = st.sampled_from(
    [True, False, INTEGER, {"type": "array"}, {"type": ["string", "null"]}, {"minimum": 2}, {"enum": [1, "x"]},
     {"$ref": "#/$defs/x"}, {"anyOf": [INTEGER, {"type": "string"}]}, {"type": "array", "items": [INTEGER]}]
)  # fmt: skip
branches = st.booleans() | st.fixed_dictionaries(
    {"properties": st.dictionaries(st.sampled_from("abc"), parts, max_size=2)},
    optional={
        "additionalProperties": st.booleans(),
        "required": st.lists(st.sampled_from("abc"), unique=True, max_size=2),
    },
)
objects = st.fixed_dictionaries(
    {"type": st.just("object"), "$defs": st.just({"x": {"type": "string"}})},
    optional={
        "properties": st.dictionaries(st.sampled_from("abc"), parts, max_size=3),
        "required": st.lists(st.sampled_from("abc"), unique=True, max_size=2),
        "additionalProperties": st.booleans(),
        "anyOf": st.lists(branches, min_size=1, max_size=3),
        "oneOf": st.lists(branches, min_size=1, max_size=2),
        "allOf": st.lists(branches, min_size=1, max_size=2),
        "if": branches,
        "then": branches,
        "not": st.just({"required": ["a", "b"]}),
    },
)  # fmt: skip
arguments = st.dictionaries(
    st.sampled_from("abcd"), st.sampled_from([None, 1, 3, "x", [], [1, "y"], {"n": 1}]), max_size=4
)


@given(objects, arguments)
def test_what_the_capability_takes_the_model_may_write(schema: dict[str, Any], value: dict[str, Any]) -> None:
    """TOOL-4: never tighter."""
    draft = jsonschema_rs.Draft7Validator(schema) if "items" in str(schema) else jsonschema_rs.validator_for(schema)
    if draft.is_valid(value):
        assert jsonschema_rs.validator_for(fitted(schema).schema).is_valid(value)
