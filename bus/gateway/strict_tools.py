"""Whether a tool's schema qualifies for a provider's strict mode, in which the model cannot write other arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_ALWAYS = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const", "$ref", "$defs",
     "definitions", "title", "description"}
)  # fmt: skip
_HOLDERS = ("properties", "$defs", "definitions")


@dataclass(frozen=True, slots=True)
class StrictRules:
    """What a provider's strict mode takes. `keywords` come on top of those that every provider takes."""

    keywords: frozenset[str]
    formats: frozenset[str]
    is_everything_required: bool = False
    is_recursion_taken: bool = True
    max_properties: int = 5000
    max_depth: int = 10


def strict_problems(schema: Mapping[str, Any], rules: StrictRules) -> list[str]:
    """Why the schema does not qualify, in words; empty when it does."""
    found = list(dict.fromkeys(_problems(schema, "arguments", rules, 1)))
    properties = sum(1 for _ in _properties(schema))
    if properties > rules.max_properties:
        found.append(f"arguments: {properties} properties, more than {rules.max_properties}")
    if not rules.is_recursion_taken and _is_recursive(schema):
        found.append("arguments: a schema that contains itself")
    return found


def _problems(schema: Any, path: str, rules: StrictRules, depth: int) -> Iterator[str]:
    if not isinstance(schema, Mapping) or not schema:
        yield f"{path}: anything is allowed"
        return
    if depth > rules.max_depth:
        yield f"{path}: nested deeper than {rules.max_depth} levels"
        return
    for keyword in schema:
        if keyword not in _ALWAYS and keyword not in rules.keywords:
            yield f"{path}: {keyword} is not taken"
    if "format" in schema and schema["format"] not in rules.formats:
        yield f"{path}: the format {schema['format']} is not taken"
    types = schema.get("type")
    if types == "object" or (isinstance(types, list) and "object" in types):
        if schema.get("additionalProperties") is not False:
            yield f"{path}: additionalProperties must be false"
        missing = [name for name in schema.get("properties", ()) if name not in schema.get("required", ())]
        if rules.is_everything_required and missing:
            yield f"{path}: {', '.join(missing)} must be required"
    for holder in _HOLDERS:
        for name, below in (schema.get(holder) or {}).items():
            yield from _problems(below, f"{path}.{name}", rules, depth + (holder == "properties"))
    for below in schema.get("anyOf") or ():
        yield from _problems(below, path, rules, depth)
    if "items" in schema:
        yield from _problems(schema["items"], f"{path}.*", rules, depth + 1)


def _properties(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        yield from schema.get("properties") or () if isinstance(schema.get("properties"), Mapping) else ()
        for below in schema.values():
            yield from _properties(below)
    elif isinstance(schema, list):
        for below in schema:
            yield from _properties(below)


def _is_recursive(schema: Mapping[str, Any]) -> bool:
    definitions = {f"#/{holder}/{name}": below for holder in ("$defs", "definitions")
                   for name, below in (schema.get(holder) or {}).items()}  # fmt: skip
    uses = {name: set(_references(below)) for name, below in definitions.items()}
    for start in uses:
        seen: set[str] = set()
        left = set(uses[start])
        while left:
            one = left.pop()
            if one == start:
                return True
            if one not in seen:
                seen.add(one)
                left |= uses.get(one, set())
    return any(reference == "#" for reference in _references(schema))


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for below in schema.values():
            yield from _references(below)
    elif isinstance(schema, list):
        for below in schema:
            yield from _references(below)
