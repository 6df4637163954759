"""The state of one comparison: the work it may still do, what is proven, and what the rules ask of each other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import jsonschema_rs

from .clause import Clause, Mode, View
from .node import Node
from .values import CannotTell

MAX_STEPS: Final = 100_000
MAX_DEPTH: Final = 80
MAX_WHYS: Final = 200
MAX_MATCHED_CHARS: Final = 10_000
_UNKNOWN_TO_CONFLUENT: Final = frozenset(
    {"format", "contentEncoding", "contentMediaType", "if", "then", "else", "propertyNames", "open"}
)


@dataclass(frozen=True, slots=True)
class Why:
    """One reason why the reader may refuse what the writer sends.

    `path` are steps into the value (`.name`, `[*]`), `word` the keyword at fault, `wrote` and `reads` the two
    sides in raw form; `unsure` says that nothing was found, but nothing proven either.
    """

    path: tuple[str, ...]
    word: str
    wrote: Any = None
    reads: Any = None
    note: str = ""
    unsure: bool = False

    def under(self, step: str) -> Why:
        """The same reason seen from one step above."""
        return Why((step, *self.path), self.word, self.wrote, self.reads, self.note, self.unsure)


class Prover(Protocol):
    """What one rule may ask while it proves its own part."""

    run: Run

    def includes(self, views: tuple[View, ...], reader: View) -> list[Why]:
        """Why not everything that satisfies `views` satisfies `reader`; empty when it is proven. Goes a level down."""
        ...

    def clause_in(self, clause: Clause, reader: View) -> list[Why]:
        """The same for a clause, at the same level."""
        ...

    def nothing(self, views: tuple[View, ...]) -> bool:
        """True when it is proven that no value satisfies all of them. Goes a level down."""
        ...

    def is_empty(self, clause: Clause) -> bool:
        """The same for a clause, at the same level."""
        ...

    def same(self, one: Node, other: Node) -> bool:
        """True when both mean the same, word for word."""
        ...

    def evaluate(self, value: Any, reader: View) -> bool | None:
        """Whether a value satisfies a schema; None when that cannot be told."""
        ...


@dataclass(slots=True)
class Run:
    """Budget and memory of one comparison, for both directions.

    `renamed` maps old property names to new ones (an upcaster covers them); `reader_is_new` is the direction;
    `same_dialect`, `shared_definitions`: equal texts mean the same on both sides, those with references too.
    """

    strict: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)
    reader_is_new: bool = True
    same_dialect: bool = False
    shared_definitions: bool = False
    steps: int = MAX_STEPS
    depth: int = 0
    _words: dict[int, dict[str, Any]] = field(default_factory=dict)
    _patterns: dict[str, Callable[[str], bool] | None] = field(default_factory=dict)

    def spend(self, steps: int = 1) -> None:
        """Raises CannotTell when the budget is used up."""
        self.steps -= steps
        if self.steps < 0:
            raise CannotTell("the schemas are too complex to compare; make them smaller or split them")

    def words(self, view: View) -> dict[str, Any]:
        """The assertions of a schema in its mode."""
        node, mode = view
        self.spend()
        if mode is not Mode.READER or not self.strict:
            return node.words
        known = self._words.get(id(node))
        if known is None:
            known = {word: value for word, value in node.words.items() if word not in _UNKNOWN_TO_CONFLUENT}
            if "required" in known:
                declared = known.get("properties", {}).keys() - known.get("defaults", frozenset())
                known["required"] = known["required"] & declared
            self._words[id(node)] = known
        return known

    def matches(self, pattern: str, text: str) -> bool | None:
        """Whether a regular expression finds something; None when it cannot be told."""
        self.spend(5)
        if len(text) > MAX_MATCHED_CHARS:
            return None
        if pattern not in self._patterns:
            try:
                self._patterns[pattern] = jsonschema_rs.Draft202012Validator({"pattern": pattern}).is_valid
            except (ValueError, jsonschema_rs.ValidationError):
                self._patterns[pattern] = None
        check = self._patterns[pattern]
        return None if check is None else check(text)

    def renames(self, words: dict[str, Any]) -> dict[str, str]:
        """Names that the reader knows by another name: its aliases, and what an upcaster gives a new reader."""
        properties = words.get("properties", {})
        upcast = self.renamed if self.reader_is_new else {}
        found = {old: new for old, new in upcast.items() if new in properties and old not in properties}
        for new, aliases in words.get("aliases", {}).items():
            found |= {old: new for old in aliases if old not in properties}
        return found


def entry(node: Node, word: str) -> Any:
    """The raw value of a keyword, None when it is not written."""
    return node.raw.get(word) if isinstance(node.raw, dict) else None


def wrote(clause: Clause, word: str) -> Any:
    """What the writer's schemas say for a keyword: the raw value of the first that says something."""
    for node, _ in clause.views.values():
        value = entry(node, word)
        if value is not None:
            return value
    return None


Key = tuple[Hashable, ...]
