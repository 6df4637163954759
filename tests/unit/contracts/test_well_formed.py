"""SCH-2, SEC-7: what counts as a schema, and that no reference leaves its file."""

from __future__ import annotations

from typing import Any

import pytest

from bus.contracts.well_formed import NotASchema, check_schema, dialect, pointer, resolve, subschemas


@pytest.mark.parametrize(
    "schema",
    [
        True,
        False,
        {},
        {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {}}, "$ref": "#/definitions/a"},
        {"$schema": "https://json-schema.org/draft-07/schema"},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": {"a/b~": True}, "$ref": "#/$defs/a~1b~0"},
        {"properties": {"$ref": {"type": "string"}, "next": {"$ref": "#"}}},
        {"enum": [{"$ref": "https://example.com/x"}], "examples": [{"$ref": 7}]},
        {"properties": {"examples": {"$ref": "#/$defs/%C3%A9"}}, "$defs": {"é": {}}},
        {"allOf": [{"$ref": "#/prefixItems/0"}], "prefixItems": [{"type": "string"}]},
    ],
)
def test_good_schemas(schema: Any) -> None:
    check_schema(schema)


@pytest.mark.parametrize(
    ("schema", "rule", "path"),
    [
        ([], "not-a-schema", ""),
        ("text", "not-a-schema", ""),
        ({"type": "strnig"}, "not-a-schema", "/type"),
        ({"properties": {"a": {"minLength": "1"}}}, "not-a-schema", "/properties/a/minLength"),
        ({"required": "a"}, "not-a-schema", "/required"),
        ({"pattern": "("}, "not-a-schema", "/pattern"),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, "unknown-draft", "/$schema"),
        ({"$schema": "https://json-schema.org/draft/2019-09/schema"}, "unknown-draft", "/$schema"),
        ({"$schema": 7}, "unknown-draft", "/$schema"),
        ({"$ref": "https://example.com/a.json"}, "remote-reference", "/$ref"),
        ({"$ref": "../secret.json"}, "remote-reference", "/$ref"),
        ({"$ref": "file:///etc/passwd"}, "remote-reference", "/$ref"),
        ({"properties": {"a/b": {"$ref": "#/$defs/No"}}}, "bad-reference", "/properties/a~1b/$ref"),
        ({"$ref": "#/type", "type": "object"}, "bad-reference", "/$ref"),
        ({"$ref": "#anchor"}, "bad-reference", "/$ref"),
        ({"$dynamicRef": "#a"}, "bad-reference", "/$dynamicRef"),
    ],
)
def test_bad_schemas_are_refused_where_they_are_bad(schema: Any, rule: str, path: str) -> None:
    with pytest.raises(NotASchema) as refused:
        check_schema(schema)
    assert (refused.value.rule, refused.value.path) == (rule, path)
    assert refused.value.mend
    assert "\n" not in str(refused.value)


def test_the_dialect_is_known_with_and_without_its_hash() -> None:
    assert dialect({"$schema": "http://json-schema.org/draft-07/schema"}).endswith("draft-07/schema")
    assert dialect({}).endswith("2020-12/schema")


def test_places_are_pointers() -> None:
    schema = {"properties": {"a/b": {"items": [{"type": "string"}]}}, "enum": [{"no": {"type": "x"}}]}
    assert {pointer(place) for place, _ in subschemas(schema)} == {"", "/properties/a~1b", "/properties/a~1b/items/0"}
    assert resolve(schema, "#/properties/a~1b/items/0") == {"type": "string"}
