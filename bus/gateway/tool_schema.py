"""The schema of a tool's arguments as the providers of models take it (TOOL-4).

Whatever they refuse is rewritten with the same meaning, or else loosened and told; never tightened, because the
capability checks the arguments against its own schema in any case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

MAX_DEPTH = 24
MAX_TOLD_CHARS = 600

_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_ONES = (
    "items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_ON_TOP = ("anyOf", "oneOf", "allOf", "not", "enum", "const", "if", "then", "else")
_DROPPED = ("$schema", "$comment", "$id", "$anchor", "$dynamicAnchor", "$vocabulary")


@dataclass(frozen=True, slots=True)
class FittedSchema:
    """A schema that providers take. `notes` say what could not be kept; `told` is for the tool's description."""

    schema: dict[str, Any]
    notes: tuple[str, ...] = ()
    told: str = ""


def fitted(schema: Mapping[str, Any], property_names: re.Pattern[str] | None = None) -> FittedSchema:
    """The schema of an object, without what providers refuse; `property_names` is what names they take.

    Raises ValueError when a property that is required has a name that they do not take.
    """
    notes: list[str] = []
    top, told = _without_choices(_resolved(schema, schema), schema, notes)
    cleaned = _cleaned(top, "arguments", property_names, notes, 0)
    result = {**cleaned, "type": "object", "properties": cleaned.get("properties", {})}
    return FittedSchema(result, tuple(dict.fromkeys(notes)), told)


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """A schema whose own `$ref`s are replaced by what they name, as far as that is in the document."""
    found = dict(schema)
    for _ in range(MAX_DEPTH):
        reference = found.pop("$ref", None)
        if not isinstance(reference, str):
            return found
        target: Any = root
        for part in reference.removeprefix("#").strip("/").split("/") if reference != "#" else []:
            target = target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
        if not reference.startswith("#") or not isinstance(target, Mapping):
            return found
        found = {**target, **found}
    found.pop("$ref", None)  # it leads in a circle, and so says nothing
    return found


def _without_choices(top: dict[str, Any], root: Mapping[str, Any], notes: list[str]) -> tuple[dict[str, Any], str]:
    """No provider takes a choice on the top: its properties are named there, and the rule is told in words."""
    rules = {name: top.pop(name) for name in _ON_TOP if name in top}
    if not rules:
        return top, ""
    notes.append(f"arguments: the provider takes no {', '.join(rules)} on the top; it stands in the description")
    properties = dict(top.get("properties") or {})
    for name in ("allOf", "anyOf", "oneOf"):
        branches = [_resolved(one, root) for one in rules.get(name, ()) if isinstance(one, Mapping)]
        is_open = len(branches) < len(rules.get(name, ()))
        for one in dict.fromkeys(known for branch in branches for known in branch.get("properties") or ()):
            properties.setdefault(one, _property(one, branches, name == "allOf", is_open))
    for branch in (_resolved(rules[name], root) for name in ("then", "else") if isinstance(rules.get(name), Mapping)):
        for one in branch.get("properties") or ():
            properties.setdefault(one, _property(one, [branch], False, True))
    required = [*top.get("required", ())]
    for branch in rules.get("allOf", ()):
        if isinstance(branch, Mapping):
            required += [name for name in _resolved(branch, root).get("required", ()) if name not in required]
    text = orjson.dumps(rules).decode()
    told = f"The arguments must also satisfy: {text}" if len(text) <= MAX_TOLD_CHARS else ""
    if not told:
        notes.append("arguments: that rule is too long for the description; a refusal of the call tells it")
    return {**top, "properties": properties, **({"required": required} if required else {})}, told


def _property(name: str, branches: list[dict[str, Any]], is_all: bool, is_open: bool) -> Any:
    """What is certain about a property that branches have: all that one says where all hold, else what may be."""
    found = [branch["properties"][name] for branch in branches if name in (branch.get("properties") or ())]
    if is_all:
        return found[0]
    others = [branch for branch in branches if name not in (branch.get("properties") or ())]
    if is_open or any(branch.get("additionalProperties") is not False for branch in others):
        first = found[0] if isinstance(found[0], Mapping) else {}
        return {key: first[key] for key in ("title", "description") if key in first}
    distinct = [one for place, one in enumerate(found) if one not in found[:place]]
    return distinct[0] if len(distinct) == 1 else {"anyOf": distinct}


def _cleaned(schema: Any, path: str, names: re.Pattern[str] | None, notes: list[str], depth: int) -> dict[str, Any]:
    if isinstance(schema, bool) or not isinstance(schema, Mapping):
        return {"not": {}} if schema is False else {}
    if depth > MAX_DEPTH:
        notes.append(f"{path}: left open, it is nested deeper than {MAX_DEPTH} levels")
        return {}
    found = {name: value for name, value in schema.items() if name not in _DROPPED}
    if isinstance(found.get("$ref"), str) and not found["$ref"].startswith("#"):
        notes.append(f"{path}: left open, its $ref names another document")
        del found["$ref"]
    _as_2020(found)
    for keyword in _OF_SCHEMAS:
        if isinstance(found.get(keyword), Mapping):
            found[keyword] = {
                name: _cleaned(below, f"{path}.{name}", names, notes, depth + 1)
                for name, below in found[keyword].items()
            }
    for keyword in _LISTS:
        if isinstance(found.get(keyword), list):
            found[keyword] = [_cleaned(one, path, names, notes, depth + 1) for one in found[keyword]]
    for keyword in _ONES:
        if isinstance(found.get(keyword), Mapping) or (keyword == "items" and keyword in found):
            found[keyword] = _cleaned(found[keyword], path, names, notes, depth + 1)
    if found.get("type") == "array" and "items" not in found:
        found["items"] = {}
    if names is not None and isinstance(found.get("properties"), Mapping):
        _leave_out(found, path, names, notes)
    return found


def _as_2020(schema: dict[str, Any]) -> None:
    """A tuple as the drafts before 2020-12 write it, as 2020-12 does."""
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if "additionalItems" in schema:
            schema["items"] = schema.pop("additionalItems")


def _leave_out(schema: dict[str, Any], path: str, names: re.Pattern[str], notes: list[str]) -> None:
    refused = [name for name in schema["properties"] if names.fullmatch(name) is None]
    for name in refused:
        if name in schema.get("required", ()):
            raise ValueError(f"{path}.{name} is required, and the provider takes no such name ({names.pattern})")
        notes.append(f"{path}.{name}: left out, the provider takes no such name")
    schema["properties"] = {name: below for name, below in schema["properties"].items() if name not in refused}
