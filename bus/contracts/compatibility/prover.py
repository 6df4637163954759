"""Is everything that a writer sends accepted by a reader? Proven, or the reasons why not.

A goal is a pair of schemas one level down (a property, an item). Goals are remembered; a goal that is asked for
again while it is being proven is assumed to hold. That is sound, because JSON values are finite and every goal in
between went into a smaller value; a reference that comes back without going down is refused when it is read.
What was proven under an assumption that then fails is forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final

from . import arrays, combined, objects, scalars
from .clause import Clause, Mode, View
from .emptiness import is_empty
from .evaluate import evaluate
from .goals import MAX_DEPTH, MAX_WHYS, Prover, Run, Why, entry, wrote
from .node import Node
from .sameness import same

MAX_SPLIT_FIRST: Final = 16
_NO_ASSUMPTION: Final = 1 << 30

Check = Callable[[Prover, Clause, View, str, Any], list[Why]]


class Proof:
    """One direction of one comparison."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.open: dict[tuple[Hashable, ...], int] = {}
        self.known: dict[tuple[Hashable, ...], list[Why]] = {}
        self.leaning: dict[tuple[Hashable, ...], int] = {}  # proven, but on the assumption of that open goal
        self.lowest = _NO_ASSUMPTION
        self.alike: dict[tuple[int, int], bool] = {}

    def includes(self, views: tuple[View, ...], reader: View) -> list[Why]:
        """See `Prover`."""
        reader = (reader[0].target(), reader[1])
        if not reader[0].words or self._has(views, reader):
            return []
        key = ("in", _keys(views), id(reader[0]), reader[1])
        return self._goal(key, lambda: self.clause_in(Clause(self.run.words).absorb(views), reader), [_TOO_DEEP])

    def nothing(self, views: tuple[View, ...]) -> bool:
        """See `Prover`."""
        if not views:
            return False
        possible = [Why((), "possible")]

        def ask() -> list[Why]:
            return [] if self.is_empty(Clause(self.run.words).absorb(views)) else possible

        return not self._goal(("empty", _keys(views)), ask, possible)

    def _goal(self, key: tuple[Hashable, ...], ask: Callable[[], list[Why]], too_deep: list[Why]) -> list[Why]:
        self.run.spend()
        if key in self.known:
            self.lowest = min(self.lowest, self.leaning.get(key, _NO_ASSUMPTION))
            return self.known[key]
        if key in self.open:
            self.lowest = min(self.lowest, self.open[key])
            return []
        if self.run.depth >= MAX_DEPTH:
            return too_deep
        level = self.open[key] = len(self.open)
        mark = len(self.leaning)
        outer, self.lowest = self.lowest, _NO_ASSUMPTION
        self.run.depth += 1
        whys = ask()
        self.run.depth -= 1
        del self.open[key]
        if whys:
            # What was proven since then may have leaned on this goal: forget it. The failure itself leans on nothing.
            for leaner in list(self.leaning)[mark:]:
                del self.known[leaner], self.leaning[leaner]
            self.lowest = outer
        elif self.lowest < level:
            for leaner in list(self.leaning)[mark:]:
                self.leaning[leaner] = min(self.leaning[leaner], self.lowest)
            self.leaning[key] = self.lowest
            self.lowest = min(self.lowest, outer)
        else:
            for leaner in list(self.leaning)[mark:]:
                del self.leaning[leaner]
            self.lowest = outer
        self.run.spend(len(self.leaning) // 50)
        self.known[key] = whys
        return whys

    def clause_in(self, clause: Clause, reader: View) -> list[Why]:
        """See `Prover`."""
        if self.run.depth >= MAX_DEPTH:
            return [_TOO_DEEP]
        self.run.depth += 1
        try:
            if self._has(clause.views.values(), reader):
                return []
            branches = math.prod(len(choice.branches) for choice in clause.choices)
            if clause.choices and branches <= MAX_SPLIT_FIRST:
                return self._split(clause, reader)
            whys = self._check(clause, reader)
            if not whys or self.is_empty(clause):
                return []  # emptiness is asked last: it costs most
            if clause.choices:
                return self._split(clause, reader)
            return self._check(clause, reader)  # without the types and values that are impossible
        finally:
            self.run.depth -= 1

    def _split(self, clause: Clause, reader: View) -> list[Why]:
        return _distinct(why for part in clause.split() for why in self.clause_in(part, reader))

    def _has(self, views: Iterable[View], reader: View) -> bool:
        """True when the reader's schema is one of the writer's, word for word."""
        node, mode = reader
        return any(
            # A reader's view of a schema may be wider than the schema as written.
            (as_written is not Mode.READER or mode is Mode.READER) and self.same(writer, node)
            for writer, as_written in list(views)
        )

    def _check(self, clause: Clause, reader: View) -> list[Why]:
        words = self.run.words(reader)
        if clause.finite() is not None:
            return self._check_values(clause, reader, words)
        found: list[Why] = []
        for word, asked in words.items():
            check = _CHECKS.get(word)
            if check is None or (word in ("enum", "const") and "open" in words and reader[1] is Mode.READER):
                continue
            found += check(self, clause, reader, word, asked)
        return _distinct(found)

    def _check_values(self, clause: Clause, reader: View, words: dict[str, Any]) -> list[Why]:
        values: dict[Hashable, Any] = clause.finite() or {}
        bad = []
        unsure = False
        if words.keys() <= {"enum", "const"}:  # long lists are compared as sets
            left = [known for known in values if any(known not in listed for listed in words.values())]
            self.run.spend(len(values) // 50)
            values = {known: values[known] for known in left}
        for value in values.values():
            self.run.spend()
            answer = self.evaluate(value, reader)
            if answer is not True:
                bad.append(value)
                unsure |= answer is None
        if not bad:
            return []
        node = reader[0].target()
        words = self.run.words((node, reader[1]))
        word = next(
            (w for w in words if w in _CHECKS and evaluate(self.run, bad[0], (node, reader[1]), w) is not True), ""
        )
        note = "for example " + scalars.listed(bad)
        return [Why((), word or "type", wrote(clause, word), entry(node, word), note, unsure)]

    def is_empty(self, clause: Clause) -> bool:
        """See `Prover`."""
        return is_empty(self, clause)

    def same(self, one: Node, other: Node) -> bool:
        """See `Prover`."""
        return same(self.run, one, other, self.alike)

    def evaluate(self, value: Any, reader: View) -> bool | None:
        """See `Prover`."""
        return evaluate(self.run, value, reader)


_TOO_DEEP: Final = Why((), "depth", note=f"nested deeper than {MAX_DEPTH} levels", unsure=True)


def _keys(views: tuple[View, ...]) -> frozenset[tuple[int, int]]:
    return frozenset([(id(node.target()), int(mode)) for node, mode in views])


def _distinct(whys: Iterable[Why]) -> list[Why]:
    found: dict[tuple[tuple[str, ...], str], Why] = {}
    for why in whys:
        if (why.path, why.word) not in found:
            found[why.path, why.word] = why
            if len(found) == MAX_WHYS:
                break
    return list(found.values())


def _refuse(prover: Prover, clause: Clause, reader: View, word: str, asked: Any) -> list[Why]:
    return [Why((), "type", wrote(clause, "type"), False, "the reader takes nothing here")]


_CHECKS: Final[dict[str, Check]] = {
    "false": _refuse,
    "type": scalars.check_type,
    **dict.fromkeys(("enum", "const"), scalars.check_values),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), scalars.check_bound),
    "multipleOf": scalars.check_multiple,
    **dict.fromkeys(scalars.TEXT_COUNTS, scalars.check_length),
    **dict.fromkeys(("pattern", "format", "contentEncoding", "contentMediaType"), scalars.check_equal),
    **dict.fromkeys(("minItems", "maxItems"), arrays.check_count),
    **dict.fromkeys(("prefixItems", "items"), arrays.check_items),
    "contains": arrays.check_contains,
    "uniqueItems": arrays.check_unique,
    **dict.fromkeys(objects.FAMILY, objects.check_members),
    "required": objects.check_required,
    **dict.fromkeys(("minProperties", "maxProperties"), objects.check_count),
    "propertyNames": objects.check_names,
    **dict.fromkeys(("dependentRequired", "dependentSchemas"), objects.check_dependent),
    **dict.fromkeys(("$ref", "allOf"), combined.check_all),
    **dict.fromkeys(("anyOf", "oneOf"), combined.check_any),
    "not": combined.check_not,
    "if": combined.check_condition,
    **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems", "$dynamicRef"), scalars.check_unsupported),
}
