"""SCH-2: whatever the schemas are, an answer comes in bounded work; what is not known is "cannot tell", so breaking."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bus.contracts.compare import compare

ROOT = Path(__file__).parents[3]
MAX_S = 5.0
MAX_BYTES = 300_000_000


def nested(depth: int, leaf: Any, word: str = "items") -> Any:
    schema = leaf
    for _ in range(depth):
        schema = {"properties": {"a": schema}} if word == "properties" else {word: [schema] if "Of" in word else schema}
    return schema


def chain(length: int, leaf: Any) -> Any:
    links = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": links | {f"d{length}": leaf}}


def doubling(levels: int, leaf: Any) -> Any:
    """Every level refers to the next one twice: 2^levels paths."""
    defs: dict[str, Any] = {
        f"d{n}": {"properties": {name: {"$ref": f"#/$defs/d{n + 1}"} for name in ("a", "b")}} for n in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": defs | {f"d{levels}": leaf}}


def choices(count: int, word: str, bound: str) -> Any:
    """2^count combinations."""
    return {"allOf": [{word: [{"properties": {f"p{n}": {bound: k}}} for k in (n, n + 1)]} for n in range(count)]}


def branches(count: int, word: str, offset: int) -> Any:
    return {word: [{"required": [f"r{n}"], "properties": {f"r{n}": {"minimum": n + offset}}} for n in range(count)]}


def enum(count: int, offset: int) -> Any:
    return {"enum": [f"value-{n:06}" for n in range(offset, count + offset)]}


def tangled(size: int, leaf: str) -> Any:
    """Every definition refers to every other: many goals that lean on each other."""
    defs = {
        f"d{n}": {"properties": {f"x{k}": {"$ref": f"#/$defs/d{k}"} for k in range(size)} | {"v": {"type": leaf}}}
        for n in range(size)
    }
    return {"$ref": "#/$defs/d0", "$defs": defs}


Pair = Callable[[], tuple[Any, Any]]
TEXT = {"type": "string"}
INTEGER = {"type": "integer"}
HOSTILE: dict[str, Pair] = {
    "100,000 nested arrays": lambda: (nested(100_000, TEXT), nested(100_000, INTEGER)),
    "50 nested arrays": lambda: (nested(50, TEXT), nested(50, INTEGER)),
    "20,000 nested objects": lambda: (
        nested(20_000, True, "properties"), nested(20_000, False, "properties")),
    "10,000 nested allOf": lambda: (
        nested(10_000, {"minLength": 1}, "allOf"), nested(10_000, {"minLength": 2}, "allOf")),
    "10,000 nested anyOf": lambda: (
        nested(10_000, {"minLength": 1}, "anyOf"), nested(10_000, {"minLength": 2}, "anyOf")),
    "10,000 nested not": lambda: (nested(10_000, {"minLength": 1}, "not"), nested(10_000, {"minLength": 2}, "not")),
    "40,000 references in a row": lambda: (chain(40_000, TEXT), chain(40_000, INTEGER)),
    "2^40 paths": lambda: (doubling(40, TEXT), doubling(40, INTEGER)),
    "2^30 anyOf": lambda: (choices(30, "anyOf", "minimum"), choices(30, "anyOf", "maximum")),
    "2^30 oneOf": lambda: (choices(30, "oneOf", "minimum"), choices(30, "oneOf", "maximum")),
    "2^1000 anyOf": lambda: (choices(1000, "anyOf", "minimum"), choices(1000, "anyOf", "maximum")),
    "1,000 anyOf branches": lambda: (branches(1000, "anyOf", 0), branches(1000, "anyOf", 1)),
    "1,000 oneOf branches": lambda: (branches(1000, "oneOf", 1), branches(1000, "oneOf", 0)),
    "a megabyte of enum": lambda: (enum(80_000, 0), enum(80_000, 1)),
    "a megabyte of enum against branches": lambda: (
        enum(80_000, 0), {"anyOf": [enum(800, 100 * n) for n in range(99)]}),
    "60 tangled definitions": lambda: (tangled(60, "string"), tangled(60, "integer")),
    "50,000 properties": lambda: (
        {"properties": {f"p{n}": TEXT for n in range(50_000)}},
        {"properties": {f"q{n}": TEXT for n in range(50_000)}},
    ),
    "400 properties renamed": lambda: (
        {"properties": {f"p{n}": TEXT for n in range(400)}},
        {"properties": {f"q{n}": TEXT for n in range(400)}},
    ),
    "a bad regular expression": lambda: (
        {"patternProperties": {"(a+)+$": {}}},
        {"properties": {"a" * 60 + "!": True, "b": False}},
    ),
    "a tuple of 30,000": lambda: ({"prefixItems": [TEXT] * 30_000}, {"prefixItems": [INTEGER] * 30_000}),
    "huge numbers": lambda: (
        {"multipleOf": 1e-300, "minimum": -(10**4000)}, {"multipleOf": 1e300, "minimum": 10**4000}),
    "a deep const": lambda: ({"const": nested(5000, 1)}, {"const": nested(5000, 2)}),
    "a deep default": lambda: ({"default": nested(5000, 1)}, {"default": nested(5000, 2)}),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "ours"])
def test_hostile_schemas_are_answered_in_bounded_time(name: str, strict: bool) -> None:
    old, new = HOSTILE[name]()
    started = time.process_time()
    found = compare(old, new, strict=strict)
    assert time.process_time() - started < MAX_S
    assert name == "a deep default" or not found.compatible
    assert len(found.changes) <= 301
    assert len(json.dumps(found.to_json())) < 3_000_000


def test_hostile_schemas_are_answered_in_bounded_memory() -> None:
    """A process of its own, whose greatest size is read at the end."""
    names = ["2^40 paths", "2^30 oneOf", "60 tangled definitions", "a megabyte of enum"]
    program = f"""
import resource, runpy
hostile = runpy.run_path({__file__!r})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for name in {names!r}:
    hostile["compare"](*hostile["HOSTILE"][name]())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT, timeout=25
    )
    in_bytes = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout) * in_bytes < MAX_BYTES


def test_an_unchanged_schema_is_compatible_though_deep() -> None:
    assert compare(nested(150, {"type": "string"}), nested(150, {"type": "string"})).compatible
    assert compare(chain(10_000, {"type": "string"}), chain(10_000, {"type": "string"})).compatible


def test_a_deep_stack_of_the_caller_is_no_danger() -> None:
    def deeper(levels: int) -> bool:
        return (
            deeper(levels - 1)
            if levels
            else compare(nested(35, {"minLength": 1}), nested(35, {"minLength": 2})).compatible
        )

    assert not deeper(600)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, "draft 2020-12 or draft-07"),
        ({"$schema": "https://json-schema.org/draft/2019-09/schema"}, "draft 2020-12 or draft-07"),
        ({"$schema": 7}, "draft 2020-12 or draft-07"),
        ({"minimum": 1, "exclusiveMinimum": True}, "draft-04"),
        ({"$ref": "https://example.org/schema.json"}, "leaves the document"),
        ({"$ref": "other.json#/a"}, "leaves the document"),
        ({"$ref": "#/$defs/none"}, "points to nothing"),
        ({"$ref": "#none"}, "names no anchor"),
        ({"$ref": "#"}, "comes back to itself"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}, {}]}, "b": {"$ref": "#/$defs/a"}}},
         "comes back to itself"),
        ({"$recursiveRef": "#"}, "2019-09"),
        ({"type": "str"}, "type is one of"),
        ({"type": []}, "type is one of"),
        ({"properties": []}, "is an object"),
        ({"required": "a"}, "list of names"),
        ({"anyOf": []}, "list of schemas"),
        ({"minLength": -1}, "whole number"),
        ({"minLength": 1.5}, "whole number"),
        ({"multipleOf": 0}, "above 0"),
        ({"minimum": float("nan")}, "not a JSON number"),
        ({"maximum": float("inf")}, "not a JSON number"),
        ({"properties": {"a": 7}}, "object or a boolean"),
        ({"prefixItems": [True], "dependencies": {}}, "say which with $schema"),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "items": [True]}, "prefixItems"),
        ({"properties": {"a": {"$id": "inner", "$ref": "#/x"}}, "x": True}, "inner $id"),
        (7, "object or a boolean"),
        (None, "object or a boolean"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_said_to_be_so(schema: Any, why: str) -> None:
    """SCH-2: "cannot tell" breaks both sides, in both directions, and names the reason."""
    for old, new in ((schema, True), (True, schema)):
        found = compare(old, new)
        assert not found.compatible
        [change] = found.changes
        assert (change.kind, change.breaks, change.severity) == ("cannot_tell", "both", "error")
        assert why in change.note


def test_dynamic_references_cannot_be_told() -> None:
    schema = {"$dynamicRef": "#a", "$defs": {"x": {"$dynamicAnchor": "a"}}}
    assert compare(schema, {**schema, "title": "t"}).changes[0].kind == "cannot_tell"
