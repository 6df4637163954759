"""SCH-2: every row of the table of compatibility rules, strict and writer/reader, backward and forward, both dialects.

A row says `(backward, forward)` for the strict column and for ours, in letters: y compatible, n breaking.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from bus.contracts.compare import compare

S: dict[str, Any] = {"type": "string"}
I: dict[str, Any] = {"type": "integer"}  # noqa: E741
N: dict[str, Any] = {"type": "number"}
NULL: dict[str, Any] = {"type": "null"}
OBJECT: dict[str, Any] = {"type": "object"}
A: dict[str, Any] = {"type": "object", "properties": {"a": S}}
WHEN: dict[str, Any] = {"if": S, "then": {"minLength": 1}}
SHUT: dict[str, Any] = {"additionalProperties": False}
ARRAY: dict[str, Any] = {"type": "array"}


def obj(*required: str, shut: bool = False, more: dict[str, Any] | None = None, **properties: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties}
    return found | ({"required": list(required)} if required else {}) | (SHUT if shut else {}) | (more or {})


def string(**words: Any) -> dict[str, Any]:
    return S | words


def tag(name: str, **words: Any) -> dict[str, Any]:
    return obj("kind", kind={"const": name}, **words)


# number, what, old, new, strict, ours
Row = tuple[str, Any, Any, str, str]
ROWS: list[Row] = [
    ("1 optional added, open", obj(a=S), obj(a=S, b=I), "ny", "yy"),
    ("2 optional added, closed", obj(a=S, shut=True), obj(a=S, b=I, shut=True), "yn", "yn"),
    ("2 optional added, only the new one closed", obj(a=S), obj(a=S, b=I, shut=True), "ny", "yy"),
    ("3 required added, open", obj(a=S), obj("b", a=S, b=I), "ny", "ny"),
    ("3 required added, closed", obj(a=S, shut=True), obj("b", a=S, b=I, shut=True), "nn", "nn"),
    ("4 required with default added, open", obj(a=S), obj("b", a=S, b=I | {"default": 1}), "ny", "ny"),
    ("4 required with default added, closed", obj(a=S, shut=True), obj("b", a=S, b=I | {"default": 1}, shut=True),
     "yn", "nn"),
    ("5 optional removed, open", obj(a=S, b=I), obj(a=S), "yn", "yy"),
    ("5 optional removed, closed", obj(a=S, b=I, shut=True), obj(a=S, shut=True), "ny", "ny"),
    ("6 required removed, open", obj("b", a=S, b=I), obj(a=S), "yn", "yn"),
    ("6 required removed, closed", obj("b", a=S, b=I, shut=True), obj(a=S, shut=True), "nn", "nn"),
    ("7 optional to required", obj(a=S), obj("a", a=S), "ny", "ny"),
    ("7 optional to required with default", obj(a=S), obj("a", a=string(default="x")), "yy", "ny"),
    ("8 required to optional", obj("a", a=S), obj(a=S), "yn", "yn"),
    ("9 rename of an optional one", obj(a=S), obj(b=S), "nn", "nn"),
    ("9 rename of a required one", obj("a", a=S), obj("b", b=S), "nn", "nn"),
    ("9 rename, closed", obj(a=S, shut=True), obj(b=S, shut=True), "nn", "nn"),
    ("10 integer to number", I, N, "yn", "yn"),
    ("10 number to integer", N, I, "ny", "ny"),
    ("11 other type", S, I, "nn", "nn"),
    ("11 array to object", ARRAY, {"type": "object"}, "nn", "nn"),
    ("12 null allowed by type", S, {"type": ["string", "null"]}, "yn", "yn"),
    ("12 null allowed by anyOf", obj(a=S), obj(a={"anyOf": [S, NULL]}), "yn", "yn"),
    ("12 null dropped", {"anyOf": [S, NULL]}, S, "ny", "ny"),
    ("13 enum value added", {"enum": ["a"]}, {"enum": ["a", "b"]}, "yn", "yn"),
    ("13 enum value removed", {"enum": ["a", "b"]}, {"enum": ["a"]}, "ny", "ny"),
    ("13 enum value replaced", {"enum": ["a", "b"]}, {"enum": ["a", "c"]}, "nn", "nn"),
    ("13 value added to an open enum", string(enum=["a"], **{"x-open-enum": True}),
     string(enum=["a", "b"], **{"x-open-enum": True}), "yn", "yy"),
    ("13 an open enum is still of its type", string(enum=["a"], **{"x-open-enum": True}),
     I | {"enum": [1], "x-open-enum": True}, "nn", "nn"),
    ("14 enum to string", string(enum=["a"]), S, "yn", "yn"),
    ("15 const changed", {"const": "a"}, {"const": "b"}, "nn", "nn"),
    ("16 const to enum", {"const": "a"}, {"enum": ["a", "b"]}, "nn", "yn"),
    ("17 minimum added", N, N | {"minimum": 0}, "ny", "ny"),
    ("17 maximum tightened", N | {"maximum": 9}, N | {"maximum": 8.5}, "ny", "ny"),
    ("17 exclusive instead of inclusive", N | {"minimum": 0}, N | {"exclusiveMinimum": 0}, "ny", "ny"),
    ("17 maxLength tightened", string(maxLength=9), string(maxLength=8), "ny", "ny"),
    ("17 minItems added", ARRAY, ARRAY | {"minItems": 1}, "ny", "ny"),
    ("17 maxProperties added", {"type": "object"}, {"type": "object", "maxProperties": 3}, "ny", "ny"),
    ("18 maximum loosened", N | {"maximum": 8}, N | {"maximum": 9}, "yn", "yn"),
    ("18 minLength removed", string(minLength=1), S, "yn", "yn"),
    ("18 exclusive maximum removed", N | {"exclusiveMaximum": 8}, N, "yn", "yn"),
    ("18 the same bound of an integer", I | {"exclusiveMinimum": 0}, I | {"minimum": 1}, "yy", "yy"),
    ("19 pattern added", S, string(pattern="^a"), "ny", "ny"),
    ("19 pattern removed", string(pattern="^a"), S, "yn", "yn"),
    ("19 pattern changed", string(pattern="^a"), string(pattern="^b"), "nn", "nn"),
    ("20 multipleOf to a divisor", N | {"multipleOf": 0.3}, N | {"multipleOf": 0.1}, "yn", "yn"),
    ("20 multipleOf to a multiple", I | {"multipleOf": 2}, I | {"multipleOf": 6}, "ny", "ny"),
    ("20 multipleOf to another", I | {"multipleOf": 2}, I | {"multipleOf": 3}, "nn", "nn"),
    ("21 uniqueItems added", ARRAY, ARRAY | {"uniqueItems": True}, "ny", "ny"),
    ("21 uniqueItems removed", ARRAY | {"uniqueItems": True}, ARRAY, "yn", "yn"),
    ("22 additionalProperties absent to false", A, A | SHUT, "ny", "yy"),
    ("22 additionalProperties true to false", A | {"additionalProperties": True}, A | SHUT, "ny", "ny"),
    ("23 additionalProperties false to absent", A | SHUT, A, "yn", "yy"),
    ("23 additionalProperties false to true", A | SHUT, A | {"additionalProperties": True}, "yn", "yn"),
    ("24 additionalProperties true to a schema", A | {"additionalProperties": True}, A | {"additionalProperties": I},
     "ny", "ny"),
    ("24 back", A | {"additionalProperties": I}, A | {"additionalProperties": True}, "yn", "yn"),
    ("25 anyOf branch added", {"anyOf": [S]}, {"anyOf": [S, I]}, "yn", "yn"),
    ("25 oneOf branch added", {"oneOf": [tag("a"), tag("b")]}, {"oneOf": [tag("a"), tag("b"), tag("c")]}, "yn", "yn"),
    ("26 anyOf branch removed", {"anyOf": [S, I]}, {"anyOf": [I]}, "ny", "ny"),
    ("26 oneOf branch removed", {"oneOf": [tag("a"), tag("b")]}, {"oneOf": [tag("b")]}, "ny", "ny"),
    ("27 allOf member added", {"allOf": [S]}, {"allOf": [S, {"minLength": 1}]}, "ny", "ny"),
    ("27 allOf member removed", {"allOf": [S, {"minLength": 1}]}, {"allOf": [S]}, "yn", "yn"),
    ("28 T to oneOf", S, {"oneOf": [S, I]}, "yn", "yn"),
    ("28 T to oneOf, objects", tag("a"), {"oneOf": [tag("a"), tag("b")]}, "yn", "yn"),
    ("29 oneOf to anyOf", {"oneOf": [{"minimum": 1}, {"maximum": 5}]}, {"anyOf": [{"minimum": 1}, {"maximum": 5}]},
     "yn", "yn"),
    ("29 oneOf to anyOf, disjoint", {"oneOf": [S, I]}, {"anyOf": [S, I]}, "yn", "yn"),
    ("30 branches reordered", {"anyOf": [S, I, NULL]}, {"anyOf": [NULL, I, S]}, "yy", "yy"),
    ("30 oneOf reordered", {"oneOf": [tag("a"), tag("b")]}, {"oneOf": [tag("b"), tag("a")]}, "yy", "yy"),
    ("30 allOf reordered", {"allOf": [S, {"minLength": 1}]}, {"allOf": [{"minLength": 1}, S]}, "yy", "yy"),
    ("31 items added", ARRAY, ARRAY | {"items": I}, "ny", "ny"),
    ("31 items removed", ARRAY | {"items": I}, ARRAY, "yn", "yn"),
    ("31 items recursed", ARRAY | {"items": ARRAY | {"items": I}}, ARRAY | {"items": ARRAY | {"items": N}}, "yn", "yn"),
    ("32 tuple item added, open", ARRAY | {"prefixItems": [S]}, ARRAY | {"prefixItems": [S, I]}, "ny", "ny"),
    ("32 tuple item added, closed", ARRAY | {"prefixItems": [S], "items": False},
     ARRAY | {"prefixItems": [S, I], "items": False}, "yn", "yn"),
    ("33 dependentRequired added", OBJECT, OBJECT | {"dependentRequired": {"a": ["b"]}}, "ny", "ny"),
    ("33 dependentRequired removed", OBJECT | {"dependentRequired": {"a": ["b"]}}, OBJECT, "yn", "yn"),
    ("33 dependentSchemas added", OBJECT,
     OBJECT | {"dependentSchemas": {"a": obj("b", b=S)}}, "ny", "ny"),
    ("34 not widened", {"not": {"type": ["integer", "string"]}}, {"not": S}, "yn", "yn"),
    ("34 not narrowed", {"not": S}, {"not": {"type": ["integer", "string"]}}, "ny", "ny"),
    ("34 not added", {}, {"not": S}, "ny", "ny"),
    ("35 if/then/else changed", WHEN, WHEN | {"then": {"minLength": 2}}, "yy", "nn"),
    ("35 if/then/else added", {}, WHEN, "yy", "nn"),
    ("35 if/then/else unchanged", WHEN, WHEN | {"title": "t"},
     "yy", "yy"),
    ("36 patternProperties added", OBJECT, OBJECT | {"patternProperties": {"^x": S}}, "yy", "ny"),
    ("36 patternProperties removed", OBJECT | {"patternProperties": {"^x": S}}, OBJECT, "yy", "yn"),
    ("36 propertyNames added", OBJECT, OBJECT | {"propertyNames": {"pattern": "^x"}}, "yy", "ny"),
    ("36 propertyNames removed", OBJECT | {"propertyNames": {"pattern": "^x"}}, OBJECT, "yy", "yn"),
    ("37 default changed", obj(a=string(default="x")), obj(a=string(default="y")), "yy", "yy"),
    ("38 words for people", string(title="a", description="b", examples=["c"], **{"$id": "urn:a"}),
     string(title="d", description="e", examples=["f"], **{"$id": "urn:b"}), "yy", "yy"),
    ("39 format added", S, string(format="date"), "yy", "ny"),
    ("39 format removed", string(format="date"), S, "yy", "yn"),
    ("39 format changed", string(format="date"), string(format="time"), "yy", "nn"),
    ("40 $ref moved", {"$ref": "#/$defs/a", "$defs": {"a": A}}, {"$ref": "#/$defs/b", "$defs": {"b": A}}, "yy", "yy"),
    ("40 $ref put in place", {"$ref": "#/$defs/a", "$defs": {"a": A}}, A, "yy", "yy"),
    ("41 typed to anything", S, {}, "yn", "yn"),
    ("41 anything to typed", {}, S, "ny", "ny"),
    ("42 an undeclared property required", A, A | {"required": ["zz"]}, "yy", "ny"),
    ("43 the same in another dialect", A | {"$schema": "http://json-schema.org/draft-07/schema#"},
     A | {"$schema": "https://json-schema.org/draft/2020-12/schema"}, "yy", "yy"),
    ("43 a dialect that is not compared", A, A | {"$schema": "http://json-schema.org/draft-04/schema#"}, "nn", "nn"),
]  # fmt: skip


def test_every_row_of_the_table_is_here() -> None:
    assert {int(what.split()[0]) for what, *_ in ROWS} == set(range(1, 44))


@pytest.mark.parametrize("column", ["strict", "ours"])
@pytest.mark.parametrize("draft", ["2020-12", "draft-07"])
@pytest.mark.parametrize(("what", "old", "new", "strict", "ours"), ROWS, ids=[row[0] for row in ROWS])
def test_row(what: str, old: Any, new: Any, strict: str, ours: str, column: str, draft: str) -> None:
    """SCH-2: the verdict of each direction, and full is both."""
    expected = strict if column == "strict" else ours
    before, after = (in_draft(schema, draft) for schema in (old, new))
    found = {
        mode: compare(before, after, mode=mode, strict=column == "strict") for mode in ("backward", "forward", "full")
    }
    said = "".join("y" if found[mode].compatible else "n" for mode in ("backward", "forward"))
    assert said == expected, [change.to_json() for verdict in found.values() for change in verdict.changes]
    assert found["full"].compatible == (expected == "yy")
    breaks = {side for change in found["full"].changes for side in SIDES[change.breaks]}
    assert breaks == {side for side, answer in zip(("new", "old"), expected, strict=True) if answer == "n"}


SIDES = {"none": (), "old_readers": ("old",), "new_readers": ("new",), "both": ("old", "new")}


def in_draft(schema: Any, draft: str) -> Any:
    """The schema as draft-07 writes it, with its `$schema`; 2020-12 is left without one."""
    if draft == "2020-12" or "$schema" in schema:
        return schema
    return old_words(copy.deepcopy(schema)) | {"$schema": "http://json-schema.org/draft-07/schema#"}


def old_words(schema: Any) -> Any:
    if isinstance(schema, list):
        return [old_words(item) for item in schema]
    if not isinstance(schema, dict):
        return schema.replace("#/$defs/", "#/definitions/") if isinstance(schema, str) else schema
    found: dict[str, Any] = {OLD_WORDS.get(str(word), str(word)): old_words(value) for word, value in schema.items()}
    if "prefixItems" in schema:
        found |= {"items": found["prefixItems"]} | ({"additionalItems": found["items"]} if "items" in schema else {})
        del found["prefixItems"]
    return found


OLD_WORDS = {"$defs": "definitions", "dependentRequired": "dependencies", "dependentSchemas": "dependencies"}


@pytest.mark.parametrize(
    ("what", "old", "new", "kind"),
    [
        ("22", A, A | SHUT, "additional_properties_changed"),
        ("25", {"oneOf": [S, obj("a", a=S)]}, {"oneOf": [S, obj("a", a=S), obj("b", b=S, shut=True)]},
         "one_of_not_discriminated"),
        ("37", obj(a=string(default="x")), obj(a=string(default="y")), "default_changed"),
    ],
)  # fmt: skip
def test_rows_that_warn(what: str, old: Any, new: Any, kind: str) -> None:
    """SCH-2: compatible, but something to look at."""
    warnings = [change.kind for change in compare(old, new).changes if change.severity == "warning"]
    assert warnings in ([kind], [kind.replace("changed", "added")])


def test_a_rename_is_an_error_unless_an_alias_or_an_upcaster_covers_it() -> None:
    """SCH-2, row 9: a rename is invisible to a comparison of structure, so it is suspected by its shape."""
    old, new = obj(topic=S, n=I), obj(subject=S, n=I)
    found = compare(old, new)
    [error] = [change for change in found.changes if change.severity == "error"]
    assert (error.kind, error.before, error.after, error.breaks) == ("suspected_rename", "topic", "subject", "both")
    assert compare(old, obj(subject=string(**{"x-aliases": ["topic"]}), n=I)).compatible
    assert compare(old, new, renamed={"topic": "subject"}).compatible
    assert not compare(old, new, renamed={"n": "subject"}).compatible
    assert compare(old, obj(subject=string(**{"x-aliases": ["topic"]}), n=I, other=S)).compatible
    assert compare(obj("b", b=string(**{"x-aliases": ["a"]})), obj("a", a=S), mode="forward").compatible


def test_a_covered_rename_of_a_required_property_breaks_old_readers_alone() -> None:
    """SCH-2, row 9: the new reader knows the old name; the old reader misses it."""
    old, new = obj("topic", topic=S), obj("subject", subject=string(**{"x-aliases": ["topic"]}))
    found = compare(old, new)
    assert {change.breaks for change in found.changes if change.severity == "error"} == {"old_readers"}
    # An upcaster from a to b helps a new reader of b, not an old one.
    found = compare(obj("b", b=S), obj("a", a=S), mode="forward", renamed={"a": "b"})
    assert "required_property_removed" in {change.kind for change in found.changes if change.severity == "error"}
    changed = obj("subject", subject=I | {"x-aliases": ["topic"]})
    assert not compare(old, changed, mode="backward").compatible


def test_an_overlapping_one_of_cannot_be_told() -> None:
    """SCH-2, row 25: a value that two branches take is refused, so a branch that may overlap breaks new readers."""
    old, new = {"oneOf": [obj("a", a=S)]}, {"oneOf": [obj("a", a=S), obj("b", b=S)]}
    found = compare(old, new, mode="backward", strict=True)
    assert [change.kind for change in found.changes if change.severity == "error"] == ["cannot_tell"]
    assert compare(old, new, mode="backward").compatible  # our writer is closed: it never sends both
