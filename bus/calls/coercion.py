"""Coercion: what a model wrote as text becomes what the schema asks for, where that is unmistakable (TOOL-3).

Only after the gate has refused the arguments, and only where the capability is `lenient`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema_rs
import orjson

from bus.calls.gate import Gate

MAX_DEFAULT_DEPTH = 8

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(?:\.[0-9]{1,18})?(?:[eE][+-]?[0-9]{1,2})?")
_MISSED = object()


def coerce(gate: Gate, arguments: Any) -> tuple[Any, list[str]]:
    """The arguments with what could be read otherwise replaced, and the paths of those; others are not changed.

    `"26"` becomes 26 where an integer is asked for, `"1.5"` a number, `"true"` a boolean, and text that is a JSON
    object or array becomes it. The result has still to pass the gate.
    """
    changed: list[str] = []
    result = copy.deepcopy(arguments)
    for failed in gate.failures(arguments):
        path = list(failed.instance_path)
        types = list(_wanted_types(failed))
        if not path or not types:
            continue
        holder = result
        for part in path[:-1]:
            holder = holder[part]
        value = _read_as(types, holder[path[-1]])
        if value is not _MISSED:
            holder[path[-1]] = value
            changed.append(".".join(["arguments", *(str(part) for part in path)]))
    return result, changed


def _wanted_types(failed: jsonschema_rs.ValidationError) -> Iterator[str]:
    kind = failed.kind
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.Type):
        yield from kind.types
    elif isinstance(kind, jsonschema_rs.ValidationErrorKind.AnyOf):
        for branch in kind.context:
            for one in branch:
                if list(one.instance_path) == list(failed.instance_path):
                    yield from _wanted_types(one)


def _read_as(types: list[str], value: Any) -> Any:
    if not isinstance(value, str):
        return _MISSED
    text = value.strip()
    for wanted in types:
        if wanted == "integer" and _INTEGER.fullmatch(text):
            return int(text)
        if wanted == "number" and _NUMBER.fullmatch(text):
            return float(text) if set(text) & set(".eE") else int(text)
        if wanted == "boolean" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if wanted in ("object", "array"):
            try:
                read = orjson.loads(text)
            except ValueError:
                continue
            if isinstance(read, dict if wanted == "object" else list):
                return read
    return _MISSED


class Defaults:
    """The defaults of a schema's properties, also of nested objects that are given."""

    __slots__ = ("_of",)

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._of = list(_defaults(schema, schema, (), 0))

    def fill(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments with the defaults of what was left out; the given object is not changed."""
        if not self._of:
            return arguments
        filled = copy.deepcopy(arguments)
        for path, value in self._of:
            holder: Any = filled
            for part in path[:-1]:
                holder = holder.get(part) if isinstance(holder, dict) else None
            if isinstance(holder, dict) and path[-1] not in holder:
                holder[path[-1]] = copy.deepcopy(value)
        return filled


def _defaults(
    schema: Any, root: Mapping[str, Any], path: tuple[str, ...], depth: int
) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not isinstance(schema, Mapping) or depth > MAX_DEFAULT_DEPTH:
        return
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        yield from _defaults(root.get("$defs", {}).get(reference.removeprefix("#/$defs/")), root, path, depth + 1)
    properties = schema.get("properties")
    for name, below in properties.items() if isinstance(properties, Mapping) else ():
        if isinstance(below, Mapping) and "default" in below:
            yield (*path, name), below["default"]
        yield from _defaults(below, root, (*path, name), depth + 1)
