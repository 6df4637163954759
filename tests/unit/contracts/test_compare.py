"""SCH-2: the public face of the comparison: modes, several versions, pydantic models, and cases beyond the table."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from bus.contracts.compare import compare, compare_many, compare_models, prepare
from schemas import brief

S: dict[str, Any] = {"type": "string"}
N: dict[str, Any] = {"type": "number"}
INT: dict[str, Any] = {"type": "integer"}


def obj(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def tree(leaf: Any, name: str = "t") -> dict[str, Any]:
    ref = {"$ref": f"#/$defs/{name}"}
    return ref | {"$defs": {name: obj(value=leaf, children={"type": "array", "items": ref})}}


def test_a_mode_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="use one of backward, forward"):
        compare({}, {}, mode="sideways")


def test_transitive_modes_look_at_every_version_and_others_at_the_last() -> None:
    versions = {"1.0": obj("a", a=S), "1.1": obj(a=S)}
    new = obj("a", a=S, b=S)
    assert [v.subject for v in compare_many(versions, new, mode="backward")] == ["1.1"]
    found = compare_many(versions, new, mode="backward_transitive")
    assert [(v.subject, v.compatible) for v in found] == [("1.0", True), ("1.1", False)]
    assert compare_many([], new) == ()
    assert [v.subject for v in compare_many([new, new], new)] == ["0", "1"]


def test_a_prepared_schema_is_compared_as_the_schema_itself() -> None:
    old, new = obj(a=S), obj(a=N)
    assert compare(prepare(old), prepare(new)) == compare(old, new)


# old, new, what each direction says in the writer/reader mode
PAIRS: list[tuple[str, Any, Any, str]] = [
    ("recursion, widened", tree(INT), tree(N), "yn"),
    ("recursion under another name", tree(S, "t"), tree(S, "u"), "yy"),
    ("recursion put out of step", tree(INT), {"$defs": tree(N)["$defs"], **obj(
        value=N, children={"type": "array", "items": {"$ref": "#/$defs/t"}})}, "yn"),
    ("siblings of $ref count", {"$ref": "#/$defs/a", "maxLength": 3, "$defs": {"a": S}}, S, "yn"),
    ("1.0 is 1", {"enum": [1]}, {"const": 1.0}, "yy"),
    ("true is not 1", {"const": 1}, {"const": True}, "nn"),
    ("0 is not false", {"enum": [[0]]}, {"enum": [[False]]}, "nn"),
    ("members have no order", {"const": {"a": 1, "b": [2.0]}}, {"const": {"b": [2], "a": 1.0}}, "yy"),
    ("an enum within a type", {"enum": ["a", "b"]}, S, "yn"),
    ("an enum beside a type", {"type": "string", "enum": ["a", 1]}, {"enum": ["a"]}, "yy"),
    ("an enum in a pattern", {"enum": ["ab", "ac"]}, {"type": "string", "pattern": "^a"}, "yn"),
    ("an enum out of a pattern", {"enum": ["ab", "ba"]}, {"type": "string", "pattern": "^a"}, "nn"),
    ("booleans as an enum", {"type": "boolean"}, {"enum": [True, False]}, "yy"),
    ("a type list as anyOf", {"type": ["string", "null"]}, {"anyOf": [S, {"type": "null"}]}, "yy"),
    ("multiples of 1 are integers", {"type": "number", "multipleOf": 1}, INT, "yy"),
    ("decimals are exact", {"type": "number", "multipleOf": 0.03}, {"type": "number", "multipleOf": 0.01}, "yn"),
    ("two steps together", {"allOf": [{"multipleOf": 4}, {"multipleOf": 6}]}, {"multipleOf": 12}, "yy"),
    ("bounds of integers", INT | {"minimum": 0.5, "maximum": 2.5}, INT | {"minimum": 1, "maximum": 2}, "yy"),
    ("nothing satisfies it", {"type": "integer", "minimum": 3, "maximum": 2}, False, "yy"),
    ("nothing through a property", obj("a", a=False), {"not": {"type": "object"}} | {"type": "object"}, "yy"),
    ("endless recursion is nothing", {"$ref": "#/$defs/a", "$defs": {"a": obj("a", a={"$ref": "#/$defs/a"})}}, False,
     "yy"),
    ("true is anything", True, {}, "yy"),
    ("false is nothing", False, S, "yn"),
    ("the end of a tuple", {"type": "array", "prefixItems": [S, INT], "items": False},
     {"type": "array", "maxItems": 2, "prefixItems": [S, INT]}, "yy"),
    ("tuples by position", {"type": "array", "prefixItems": [S, INT]}, {"type": "array", "prefixItems": [INT, S]},
     "nn"),
    ("no item, no rule", {"type": "array", "maxItems": 0}, {"type": "array", "items": False}, "yy"),
    ("contains narrowed", {"type": "array", "contains": N}, {"type": "array", "contains": INT}, "ny"),
    ("contains counted", {"type": "array", "contains": S, "minContains": 2}, {"type": "array", "contains": S}, "yn"),
    ("contains limited", {"type": "array", "contains": S, "maxContains": 2},
     {"type": "array", "contains": S, "maxContains": 3}, "yn"),
    ("every item is one", {"type": "array", "items": S, "minItems": 1}, {"type": "array", "contains": S}, "yn"),
    ("tags tell a union apart", {"anyOf": [obj("k", k={"const": "a"}, x=S), obj("k", k={"const": "b"}, y=N)]},
     {"anyOf": [obj("k", k={"const": "b"}, y=N), obj("k", k={"const": "a"}, x=S), obj("k", k={"const": "c"})]}, "yn"),
    ("one enum tag falls into branches", obj("k", k={"enum": ["a", "b"]}),
     {"anyOf": [obj("k", k={"const": "a"}), obj("k", k={"const": "b"})]}, "yy"),
    ("a map of a type", {"type": "object", "additionalProperties": INT}, {"type": "object", "additionalProperties": N},
     "yn"),
    ("a map becomes a record", {"type": "object", "additionalProperties": S},
     obj(a=S) | {"additionalProperties": False},
     "ny"),
    ("keys of an enum", {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": S},
     obj(a=S, b=S) | {"additionalProperties": False}, "yy"),
    ("two patterns side by side", {"type": "object", "patternProperties": {"^a": S, "^b": INT}},
     {"type": "object", "patternProperties": {"^a": S, "^b": N}}, "yn"),
    ("allOf closes as one", {"allOf": [obj(a=S), obj(b=S)]}, obj(a=S, b=S) | {"additionalProperties": False}, "yy"),
    ("not of another type", S, {"not": INT}, "yn"),
    ("not of a property", obj("a", a=S), {"not": {"required": ["b"]}}, "yn"),
    ("a required name implies another", {"type": "object", "dependentRequired": {"a": ["b"]}, "required": ["a"]},
     {"type": "object", "required": ["a", "b"]}, "yy"),
    ("a default is written", obj(a=S | {"default": "x"}), obj("a", a=S), "yy"),
    ("a default within a default", obj("o", o=obj(a=S | {"default": "x"})), obj("o", o=obj("a", a=S)), "yy"),
    ("unevaluated like additional", obj(a=S) | {"unevaluatedProperties": False},
     obj(a=S) | {"additionalProperties": False},
     "yy"),
    ("unevaluated beside a branch", {"anyOf": [obj(a=S)], "unevaluatedProperties": False},
     {"anyOf": [obj(a=S), obj(b=S)], "unevaluatedProperties": False}, "nn"),
    ("content is compared by name", S | {"contentEncoding": "base64"}, S, "yn"),
    ("the first integer", INT | {"minimum": 1, "maximum": 9}, INT | {"minimum": 2, "maximum": 9}, "ny"),
    ("the last integer", INT | {"minimum": 1, "maximum": 9}, INT | {"minimum": 1, "maximum": 8}, "ny"),
    ("many choices may declare more", {**obj(a=S), "allOf": [{"anyOf": [obj(**{f"b{n}": S}), obj(**{f"c{n}": S})]}
                                                             for n in range(5)]}, obj(a=S, b0=INT), "ny"),
    ("what is contained is not closed", {"type": "array", "contains": obj(a=S)},
     {"type": "array", "contains": obj(a=S) | {"additionalProperties": False}}, "ny"),
    ("exactly one excludes the others", N | {"oneOf": [{"minimum": 1}, {"maximum": 5}]},
     N | {"not": {"minimum": 1, "maximum": 5}}, "yn"),
    ("dependent schemas may declare more", obj(a=S) | {"dependentSchemas": {"a": obj(b=S)}},
     obj(a=S) | {"additionalProperties": False}, "ny"),
    ("patterns of two members meet in one name", {"type": "object", "allOf": [
        {"patternProperties": {"^a": True}}, {"patternProperties": {"b$": INT}, "additionalProperties": S}]},
     {"type": "object", "patternProperties": {"^a": S}}, "nn"),
    ("a pattern that cannot be read", {"type": "object", "patternProperties": {"(?<bad": INT},
                                        "additionalProperties": S}, {"type": "object", "properties": {"a": S}}, "nn"),
    ("minProperties by required names", obj("a", a=S, b=S), {"type": "object", "minProperties": 1}, "yn"),
    ("declared is not sent", obj(a=S, b=S), {"type": "object", "minProperties": 1}, "nn"),
    ("one of two implied names", {"type": "object", "dependentRequired": {"a": ["b"]}},
     {"type": "object", "dependentRequired": {"a": ["b", "c"]}}, "ny"),
    ("contains too few", {"type": "array", "contains": S}, {"type": "array", "contains": S, "minContains": 2}, "ny"),
    ("an empty list contains nothing", {"type": "array", "items": S}, {"type": "array", "contains": S}, "nn"),
    ("an item that cannot be may stay away", {"type": "array", "items": False}, {"type": "array", "maxItems": 0}, "yy"),
    ("a bound that leaves one number", N | {"minimum": 1, "maximum": 1}, S, "nn"),
    ("a size that leaves one list", {"type": "array", "minItems": 1, "maxItems": 1}, S, "nn"),
    ("one branch of two is nothing", {"anyOf": [False, S]}, INT, "nn"),
    ("values by exactly one branch", {"enum": [1, 7]}, {"oneOf": [{"minimum": 0}, {"maximum": 5}]}, "nn"),
    ("values by position", {"const": [1, "a"]}, {"prefixItems": [INT], "items": S}, "yn"),
    ("values by what they are not", {"enum": ["a"]}, {"not": {"format": "date"}}, "nn"),
    ("the other way round of contains", {"type": "array", "contains": INT, "maxContains": 2},
     {"type": "array", "contains": N, "maxContains": 2}, "nn"),
    ("texts alike in two dialects", {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
                                     "properties": {"a": {"prefixItems": [S]}}},
     {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
      "properties": {"a": {"prefixItems": [S]}}}, "ny"),
    ("texts alike, definitions not", obj(o=obj(a={"$ref": "#/$defs/x"})) | {"$defs": {"x": S}},
     obj(o=obj(a={"$ref": "#/$defs/x"})) | {"$defs": {"x": INT}}, "nn"),
    ("an open enum in what is excluded", {"not": {"enum": ["a"], "x-open-enum": True}}, {"not": {"const": "b"}}, "nn"),
    ("a pattern within what others may be", {"type": "object", "patternProperties": {"^x": S},
                                             "additionalProperties": INT},
     {"type": "object", "additionalProperties": INT}, "nn"),
    ("the same condition beside a change", S | {"maxLength": 3, "if": {"minLength": 1}, "then": {"pattern": "a"}},
     S | {"maxLength": 5, "if": {"minLength": 1}, "then": {"pattern": "a"}}, "yn"),
    ("many choices, each with a branch that is nothing",
     {"allOf": [{"anyOf": [False, {"maxLength": n}]} for n in range(5)]}, INT, "ny"),
    ("an open enum overlaps", {"oneOf": [INT, {"enum": ["a"], "x-open-enum": True}]},
     {"oneOf": [N, {"enum": ["a"], "x-open-enum": True}]}, "nn"),
    ("anchors", {"$ref": "#x", "$defs": {"a": S | {"$anchor": "x"}}}, S, "yy"),
    ("the root by its $id", {"$id": "https://e.org/a", "$ref": "https://e.org/a#/$defs/a", "$defs": {"a": S}}, S, "yy"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "old", "new", "expected"), PAIRS, ids=[pair[0] for pair in PAIRS])
def test_pair(what: str, old: Any, new: Any, expected: str) -> None:
    said = "".join("y" if compare(old, new, mode=mode).compatible else "n" for mode in ("backward", "forward"))
    assert said == expected, compare(old, new).changes


def test_draft_07_ignores_what_stands_beside_a_reference() -> None:
    draft = {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": S}}
    assert compare(draft | {"$ref": "#/definitions/a", "maxLength": 3}, draft | {"$ref": "#/definitions/a"}).compatible


def test_changes_name_the_place_and_who_breaks() -> None:
    old = obj("items", items={"type": "array", "items": obj(**{"a b": S, "n": INT})})
    new = obj("items", items={"type": "array", "items": obj("n", **{"a b": N, "n": INT})})
    found = {(c.path, c.kind, c.breaks) for c in compare(old, new).changes}
    assert found == {
        ("$.items[*]['a b']", "type_changed", "both"),
        ("$.items[*].n", "property_made_required", "new_readers"),
    }


class Tag(BaseModel):
    kind: Literal["a"] = "a"


class Old(BaseModel):
    name: str
    size: int = 1
    tags: list[Tag] = Field(default_factory=list)


class Wider(BaseModel):
    name: str
    size: float = 1
    tags: list[Tag] = Field(default_factory=list)
    note: str | None = None


class Demanding(BaseModel):
    name: str
    size: int
    tags: list[Tag]


class Closed(Old):
    model_config = ConfigDict(extra="forbid")


class Loose(Old):
    model_config = ConfigDict(extra="allow")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (Old, Old, "yy"),
        (Old, Wider, "yn"),  # an old reader has no use for 1.5
        (Old, Demanding, "yy"),  # defaults, and those of a factory, are always serialised
        (Old, Closed, "yy"),
        (Closed, Wider, "yn"),
        (Loose, Closed, "ny"),
        (Closed, Loose, "yn"),
        (Demanding, Old, "yy"),
    ],
)
def test_models_are_compared_as_writer_and_reader(old: type[BaseModel], new: type[BaseModel], expected: str) -> None:
    """Reader = validation, closed only if extras are forbidden; writer = serialization, defaults required."""
    said = "".join("y" if compare_models(old, new, mode=mode).compatible else "n" for mode in ("backward", "forward"))
    assert said == expected


@pytest.mark.parametrize("model", [brief.PlanRequest, brief.AgentMessage, brief.BriefReady])
def test_contracts_of_the_example_are_compatible_with_themselves(model: type[BaseModel]) -> None:
    assert compare_models(model, model).changes == ()
    assert compare(model.model_json_schema(), model.model_json_schema(), strict=True).compatible


def test_what_rests_on_a_written_default_is_a_warning() -> None:
    """A model always sends its defaults; a sender of plain objects may not, so the verdict says what it rests on."""
    [change] = compare(obj(a=S | {"default": "x"}), obj("a", a=S | {"default": "x"})).changes
    assert (change.kind, change.severity, change.breaks) == ("property_made_required", "warning", "none")
    assert "holds where writers send the default" in change.note


@pytest.mark.parametrize(("start", "path"), [("b", "$.v.a.x"), ("c", "$.v.b.a.x"), ("d", "$.v.c.b.a.x")])
def test_what_leaned_on_a_failed_assumption_is_forgotten(start: str, path: str) -> None:
    """Goals in a circle: b, c and d hold on the assumption that a holds; a fails, so each is asked again."""

    def cyclic(leaf: Any) -> dict[str, Any]:
        a, b, c, d = ({"$ref": f"#/$defs/{name}"} for name in "abcd")
        definitions = {"a": obj(b=b, d=d, x=leaf), "b": obj(a=a, c=c), "c": obj(b=b), "d": obj(c=c)}
        return obj(u=a, v={"$ref": f"#/$defs/{start}"}) | {"$defs": definitions}

    assert compare(cyclic(INT), cyclic(N), mode="backward").compatible
    found = compare(cyclic(N), cyclic(INT), mode="backward")
    assert path in {change.path for change in found.changes if change.severity == "error"}
