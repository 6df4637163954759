"""What a value that satisfies some schemas is known to be: their assertions merged, their choices kept apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from typing import Any, Final

from .node import Node
from .values import exact

ALL_TYPES: Final = frozenset({"null", "boolean", "number", "string", "array", "object"})


class Mode(IntEnum):
    """How a schema is looked at.

    WRITER: what our writers send: closed unless extras are allowed, defaults written. RAW: as written. READER: what a
    reader takes: an open enum takes any value; in the strict mode, what Confluent's checker leaves out is left out.
    """

    WRITER = 0
    RAW = 1
    READER = 2


View = tuple[Node, Mode]
Words = Callable[[View], dict[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The property keywords of one schema, which belong together."""

    properties: dict[str, Node]
    patterns: dict[str, Node]
    additional: Node | None
    mode: Mode


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """The item keywords of one schema."""

    prefix: tuple[Node, ...]
    rest: Node | None
    mode: Mode


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """An anyOf or oneOf that was not split yet."""

    branches: tuple[Node, ...]
    exactly_one: bool
    mode: Mode


class Clause:
    """A conjunction. Every field says less than or as much as the schemas do, never more: it may be too wide."""

    __slots__ = (
        "choices", "closing", "conditions", "contains", "dependent", "dependent_schemas", "equals", "excluded",
        "groups", "high", "low", "max_items", "max_length", "max_properties", "min_items", "min_length",
        "min_properties", "multiple", "names", "opened", "required", "rows", "sent", "types", "unique", "vacant",
        "values", "views", "words",
    )  # fmt: skip

    def __init__(self, words: Words) -> None:
        self.words = words
        self.views: dict[tuple[int, Mode], View] = {}
        self.types: frozenset[str] = ALL_TYPES
        self.values: dict[Hashable, Any] | None = None
        self.low: tuple[int | Fraction, bool] | None = None  # bound, and whether it is excluded
        self.high: tuple[int | Fraction, bool] | None = None
        self.multiple: int | Fraction | None = None
        self.min_length, self.min_items, self.min_properties = 0, 0, 0
        self.max_length: int | None = None
        self.max_items: int | None = None
        self.max_properties: int | None = None
        self.equals: set[tuple[str, Hashable]] = set()  # pattern, format, content*: known by name only
        self.unique = False
        self.groups: list[Group] = []
        self.rows: list[Row] = []
        self.contains: list[tuple[View, int, int | None]] = []
        self.names: list[View] = []
        self.required: set[str] = set()
        self.sent: set[str] = set()  # what the writer itself requires
        self.dependent: dict[str, frozenset[str]] = {}
        self.dependent_schemas: list[tuple[str, View]] = []
        self.excluded: list[View] = []
        self.conditions: list[tuple[Node | None, Node | None, Node | None]] = []
        self.choices: list[Choice] = []
        self.closing = False
        self.opened = False
        self.vacant: bool | None = None  # what `emptiness` found

    def copy(self) -> Clause:
        """A clause of its own; its emptiness is not known yet."""
        twin = Clause(self.words)
        for name in Clause.__slots__:
            value = getattr(self, name)
            setattr(twin, name, value.copy() if isinstance(value, dict | list | set) else value)
        twin.vacant = None
        return twin

    @property
    def closed(self) -> bool:
        """True when only declared (or required) names are written."""
        return self.closing and not self.opened and not any(choice.mode is Mode.WRITER for choice in self.choices)

    def absorb(self, views: Iterable[View]) -> Clause:
        """Add schemas to the conjunction."""
        stack = list(views)
        while stack:
            view = stack.pop()
            node, mode = view
            if (id(node), mode) in self.views:
                continue
            self.views[id(node), mode] = view
            words = self.words(view)
            if words:
                self.vacant = None
                self._take(words, mode, stack)
        return self

    def _take(self, words: dict[str, Any], mode: Mode, stack: list[View]) -> None:
        for word, value in words.items():
            if word == "type":
                self.limit_types(value)
            elif word in ("enum", "const"):
                if not ("open" in words and mode is Mode.READER):
                    self.limit_values(value)
            elif word in ("minimum", "exclusiveMinimum"):
                self.low = _tighter(self.low, (value, word[0] == "e"), 1)
            elif word in ("maximum", "exclusiveMaximum"):
                self.high = _tighter(self.high, (value, word[0] == "e"), -1)
            elif word == "multipleOf":
                self.multiple = value if self.multiple is None else lcm(self.multiple, value)
            elif word in _LOWEST:
                name = _LOWEST[word]
                setattr(self, name, max(getattr(self, name), value))
            elif word in _HIGHEST:
                name = _HIGHEST[word]
                known = getattr(self, name)
                setattr(self, name, value if known is None else min(known, value))
            elif word in ("pattern", "format", "contentEncoding", "contentMediaType", "$dynamicRef"):
                self.equals.add((word, value))
            elif word == "uniqueItems":
                self.unique = True
            elif word == "required":
                self.required |= value
                if mode is Mode.WRITER:
                    self.sent |= value
            elif word in ("$ref", "not", "allOf", "anyOf", "oneOf", "dependentSchemas", "propertyNames", "contains"):
                self._take_schemas(word, value, words, mode, stack)
        self._take_families(words, mode)

    def _take_schemas(self, word: str, value: Any, words: dict[str, Any], mode: Mode, stack: list[View]) -> None:
        inner = Mode.RAW if mode is Mode.WRITER else mode  # what is not written itself is not tightened
        if word == "$ref":
            stack.append((value, mode))
        elif word == "not":
            self.excluded.append((value, inner))
        elif word == "allOf":
            stack += [(member, mode) for member in value]
        elif word in ("anyOf", "oneOf"):
            if len(value) == 1:
                stack.append((value[0], mode))
            else:
                self.choices.append(Choice(value, word == "oneOf", mode))
        elif word == "dependentSchemas":
            self.dependent_schemas += [(name, (schema, inner)) for name, schema in value.items()]
        elif word == "propertyNames":
            self.names.append((value, inner))
        else:
            self.contains.append(((value, inner), words.get("minContains", 1), words.get("maxContains")))

    def _take_families(self, words: dict[str, Any], mode: Mode) -> None:
        """Keywords that mean something together only."""
        if words.keys() & {"properties", "patternProperties", "additionalProperties"}:
            properties = words.get("properties", {})
            additional = words.get("additionalProperties")
            self.groups.append(Group(properties, words.get("patternProperties", {}), additional, mode))
            if mode is Mode.WRITER:
                self.closing |= "properties" in words
                self.opened |= additional is not None and "false" not in additional.words
                self.required |= words.get("defaults", frozenset())
        if words.keys() & {"prefixItems", "items"}:
            self.rows.append(Row(words.get("prefixItems", ()), words.get("items"), mode))
        for name, names in words.get("dependentRequired", {}).items():
            self.dependent[name] = self.dependent.get(name, frozenset()) | names
        if "if" in words and mode is not Mode.READER:
            self.conditions.append((words["if"], words.get("then"), words.get("else")))
        if mode is Mode.WRITER and words.keys() & {"if", "dependentSchemas", "unevaluatedProperties"}:
            self.opened = True  # these may declare more names than are seen here

    def limit_types(self, types: frozenset[str]) -> None:
        """Keep the types that are allowed; an integer is a number."""
        kept = self.types & types
        if "number" in self.types and "integer" in types:
            kept |= {"integer"}
        if "integer" in self.types and "number" in types:
            kept |= {"integer"}
        self.types = kept
        self.vacant = None

    def limit_values(self, values: dict[Hashable, Any]) -> None:
        """Keep the values that are allowed."""
        self.values = values if self.values is None else {k: v for k, v in self.values.items() if k in values}
        self.vacant = None

    def split(self) -> Iterable[Clause]:
        """The clauses of the first choice, one a branch; together they take what this one takes."""
        choice, *others = self.choices
        for index, branch in enumerate(choice.branches):
            twin = self.copy()
            twin.choices = list(others)
            if choice.exactly_one:
                mode = Mode.RAW if choice.mode is Mode.WRITER else choice.mode
                twin.excluded += [(other, mode) for at, other in enumerate(choice.branches) if at != index]
            yield twin.absorb([(branch, choice.mode)])

    def only(self, type_name: str) -> Clause:
        """This clause for one type."""
        twin = self.copy()
        twin.types = frozenset({type_name})
        return twin

    def finite(self) -> dict[Hashable, Any] | None:
        """Every value that it can take, when that is a short list: an enum, null, true and false."""
        if self.values is not None:
            return self.values
        if self.types <= {"null", "boolean"}:
            words: list[tuple[str, Any]] = [("null", None), ("boolean", True), ("boolean", False)]
            return {("word", value): value for name, value in words if name in self.types}
        return None

    def lowest(self) -> tuple[int | Fraction, bool] | None:
        """The lower bound of its numbers; for integers the first one."""
        if self.low is None or "number" in self.types:
            return self.low
        bound, excluded = self.low
        return (math.floor(bound) + 1 if excluded else math.ceil(bound)), False

    def highest(self) -> tuple[int | Fraction, bool] | None:
        """The upper bound of its numbers; for integers the last one."""
        if self.high is None or "number" in self.types:
            return self.high
        bound, excluded = self.high
        return (math.ceil(bound) - 1 if excluded else math.floor(bound)), False

    def step(self) -> int | Fraction | None:
        """Its numbers are multiples of this."""
        if "number" in self.types:
            return self.multiple
        return 1 if self.multiple is None else lcm(self.multiple, 1)

    def most_items(self) -> int | None:
        """How many items an array has at most; rows that end count."""
        ends = [len(row.prefix) for row in self.rows if row.rest is not None and "false" in row.rest.words]
        known = [*ends, *([] if self.max_items is None else [self.max_items])]
        return min(known) if known else None

    def item_views(self, index: int) -> tuple[View, ...]:
        """What the item at an index satisfies."""
        found = [(row.prefix[index] if index < len(row.prefix) else row.rest, row.mode) for row in self.rows]
        return tuple((node, mode) for node, mode in found if node is not None)


_LOWEST: Final = {"minLength": "min_length", "minItems": "min_items", "minProperties": "min_properties"}
_HIGHEST: Final = {"maxLength": "max_length", "maxItems": "max_items", "maxProperties": "max_properties"}


def lcm(one: int | Fraction, other: int | Fraction) -> int | Fraction:
    """The smallest number that is a multiple of both."""
    a, b = Fraction(one), Fraction(other)
    found = Fraction(math.lcm(a.numerator, b.numerator), math.gcd(a.denominator, b.denominator))
    return found.numerator if found.denominator == 1 else found


def _tighter(
    known: tuple[int | Fraction, bool] | None, new: tuple[int | Fraction, bool], sign: int
) -> tuple[int | Fraction, bool]:
    if known is None or (new[0] - known[0]) * sign > 0 or (new[0] == known[0] and new[1]):
        return new
    return known


def at_least(known: tuple[int | Fraction, bool] | None, asked: tuple[int | Fraction, bool], sign: int) -> bool:
    """True when the bound `known` implies the bound `asked`; sign 1 for lower bounds, -1 for upper ones."""
    if known is None:
        return False
    apart = (known[0] - asked[0]) * sign
    return apart > 0 or (apart == 0 and (known[1] or not asked[1]))


def number_fits(value: int | float, words: dict[str, Any]) -> bool:
    """True when a number keeps the bounds and the step of some words."""
    number = exact(value)
    return (
        ("minimum" not in words or number >= words["minimum"])
        and ("maximum" not in words or number <= words["maximum"])
        and ("exclusiveMinimum" not in words or number > words["exclusiveMinimum"])
        and ("exclusiveMaximum" not in words or number < words["exclusiveMaximum"])
        and ("multipleOf" not in words or number % words["multipleOf"] == 0)
    )
