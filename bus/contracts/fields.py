"""The fields of a contract as a person names them: `theme.candidates[].text`, with what the schema says of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bus.contracts.well_formed import resolve

MAX_FIELDS: Final = 2000
MAX_LEVELS: Final = 24
_BRANCHES: Final = ("allOf", "anyOf", "oneOf")
_NOTHING: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class Field:
    """One property, wherever it stands.

    `path` is dotted, `[]` for the items of an array and `{}` for the values of a map. `nodes` are the schemas that
    speak of it, its own first, then what it refers to and its branches. `level` is 1 at the top. `siblings` are the
    names of the same object, `items` the JSON types of an array's items.
    """

    path: str
    name: str
    level: int
    is_required: bool
    nodes: tuple[Mapping[str, Any], ...]
    siblings: frozenset[str]
    items: tuple[str, ...] = ()

    def says(self, keyword: str) -> Any:
        """The first value of a keyword among its nodes, None without one."""
        return next((node[keyword] for node in self.nodes if keyword in node), None)

    @property
    def types(self) -> tuple[str, ...]:
        """The JSON types that it may have, sorted, without null; empty for any."""
        return types_of(self.nodes)

    @property
    def is_nullable(self) -> bool:
        """Whether null is among its types."""
        return any("null" in _types(node) for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Fields:
    """All fields, in the order of the schema. `is_cut`: there are more than 2000, or they lie over 24 levels deep."""

    found: tuple[Field, ...]
    is_cut: bool

    def __iter__(self) -> Iterator[Field]:
        return iter(self.found)

    @property
    def paths(self) -> dict[str, Field]:
        """The fields by their path."""
        return {field.path: field for field in self.found}


def fields_of(schema: Mapping[str, Any] | bool) -> Fields:
    """Every property of a schema. A schema that contains itself is followed once, so this always ends."""
    walk = _Walk(schema)
    if isinstance(schema, dict):
        walk.object(schema, "", 1, ())
    return Fields(tuple(walk.found.values()), walk.is_cut)


def nodes_of(root: Any, schema: Any) -> tuple[Mapping[str, Any], ...]:
    """A schema with all that it refers to and all its branches, each once, its own node first."""
    found: list[Mapping[str, Any]] = []
    seen: set[int] = set()
    waiting = [schema]
    while waiting:
        node = waiting.pop(0)
        if not isinstance(node, dict) or id(node) in seen:
            continue
        seen.add(id(node))
        found.append(node)
        if isinstance(node.get("$ref"), str):
            waiting.append(resolve(root, node["$ref"]))
        for keyword in _BRANCHES:
            branches = node.get(keyword)
            waiting += branches if isinstance(branches, list) else []
    return tuple(found)


def types_of(nodes: tuple[Mapping[str, Any], ...]) -> tuple[str, ...]:
    """The JSON types that these nodes name, sorted, without null."""
    return tuple(sorted({one for node in nodes for one in _types(node)} - {"null"}))


def _types(node: Mapping[str, Any]) -> set[str]:
    said = node.get("type")
    if isinstance(said, str):
        return {said}
    return {one for one in said if isinstance(one, str)} if isinstance(said, list) else set()


class _Walk:
    """Collects fields depth first; `trail` holds the nodes above, so that recursion stops at the first return."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self.found: dict[str, Field] = {}
        self.is_cut = False

    def object(self, schema: Any, prefix: str, level: int, trail: tuple[int, ...]) -> None:
        nodes = nodes_of(self._root, schema)
        fresh = [node for node in nodes if id(node) not in trail]
        if level > MAX_LEVELS:
            self.is_cut = True
            return
        below = (*trail, *(id(node) for node in fresh))
        required = {name for node in fresh for name in _list(node.get("required")) if isinstance(name, str)}
        siblings = frozenset(name for node in fresh for name in _object(node.get("properties")))
        for node in fresh:
            for name, own in _object(node.get("properties")).items():
                self._field(name, own, prefix, level, name in required, siblings, below)
            for items in _items(node):
                self.object(items, f"{prefix}[]", level, below)
            for value in _values(node):
                self.object(value, f"{prefix}{{}}", level, below)

    def _field(
        self,
        name: str,
        schema: Any,
        prefix: str,
        level: int,
        is_required: bool,
        siblings: frozenset[str],
        trail: tuple[int, ...],
    ) -> None:
        path = f"{prefix}.{name}" if prefix else name
        if path in self.found:
            return
        if len(self.found) >= MAX_FIELDS:
            self.is_cut = True
            return
        nodes = nodes_of(self._root, schema)
        items = types_of(tuple(one for node in nodes for item in _items(node) for one in nodes_of(self._root, item)))
        self.found[path] = Field(path, name, level, is_required, nodes, siblings, items)
        self.object(schema, path, level + 1, trail)


def _items(node: Mapping[str, Any]) -> list[Any]:
    items = node.get("items")
    tuples = items if isinstance(items, list) else [items]
    return [one for one in [*tuples, *_list(node.get("prefixItems"))] if isinstance(one, dict)]


def _values(node: Mapping[str, Any]) -> list[Any]:
    values = [node.get("additionalProperties"), *_object(node.get("patternProperties")).values()]
    return [one for one in values if isinstance(one, dict)]


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else _NOTHING


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
