"""Does what a writer sends keep a reader's keyword? References and combined schemas."""

from __future__ import annotations

from typing import Any, Final

from .clause import Clause, Mode, View
from .goals import Prover, Why, entry, wrote
from .members import closure, views_of
from .node import Node

MAX_TAGS: Final = 64


def check_all(prover: Prover, clause: Clause, reader: View, word: str, asked: Any) -> list[Why]:
    """`$ref` and `allOf`: every member."""
    members = (asked,) if word == "$ref" else asked
    return [why for member in members for why in prover.clause_in(clause, (member, reader[1]))]


def check_any(prover: Prover, clause: Clause, reader: View, word: str, asked: tuple[Node, ...]) -> list[Why]:
    """`anyOf` and `oneOf`: one branch takes all of the clause, or of each part that the clause falls into."""
    whys = _best(prover, clause, reader, word, asked)
    if not whys:
        return []
    for parts in (_by_type(clause), _by_tag(prover, clause, asked)):
        if len(parts) > 1:
            return [why for part in parts for why in _part(prover, part, reader, word, asked)]
    return whys


def _part(prover: Prover, part: Clause, reader: View, word: str, asked: tuple[Node, ...]) -> list[Why]:
    return [] if prover.is_empty(part) else check_any(prover, part, reader, word, asked)


def _best(prover: Prover, clause: Clause, reader: View, word: str, asked: tuple[Node, ...]) -> list[Why]:
    """Empty when a branch takes the clause; else the reasons of the one branch that nearly does, or a general one."""
    mode = reader[1]
    near: list[list[Why]] = []
    overlap = False
    for index, branch in enumerate(asked):
        whys = prover.clause_in(clause, (branch, mode))
        if whys:
            if all(why.path for why in whys):
                near.append(whys)
            continue
        if word == "anyOf" or all(
            _disjoint(prover, clause, (other, mode)) for at, other in enumerate(asked) if at != index
        ):
            return []
        overlap = True
        break
    if len(near) == 1 and not overlap:
        return near[0]
    note = "more than one branch may take the same value" if overlap else "no branch takes all of it"
    return [Why((), word, wrote(clause, word), entry(reader[0], word), note, unsure=overlap)]


def _disjoint(prover: Prover, clause: Clause, other: View) -> bool:
    return prover.is_empty(clause.copy().absorb([other]))


def check_not(prover: Prover, clause: Clause, reader: View, word: str, asked: Node) -> list[Why]:
    """`not`: nothing that the writer sends satisfies it."""
    if _disjoint(prover, clause, (asked, reader[1])):
        return []
    return [Why((), word, wrote(clause, word), entry(reader[0], word))]


def check_condition(prover: Prover, clause: Clause, reader: View, word: str, asked: Node) -> list[Why]:
    """`if` with `then` and `else` is kept only where the writer has the very same three."""
    words = prover.run.words(reader)
    branches = (words.get("then"), words.get("else"))
    for condition, *theirs in clause.conditions:
        pairs = zip((condition, *theirs), (asked, *branches), strict=True)
        if all(one is other or (one and other and prover.same(one, other)) for one, other in pairs):
            return []
    return [Why((), word, wrote(clause, word), entry(reader[0], word), "if/then/else is not compared", unsure=True)]


def _by_type(clause: Clause) -> list[Clause]:
    return [clause.only(name) for name in sorted(clause.types)]


def _by_tag(prover: Prover, clause: Clause, asked: tuple[Node, ...]) -> list[Clause]:
    """The clause once for each value of a required property that is an enum on both sides: a discriminator."""
    if clause.types != {"object"}:
        return []
    for name in sorted(closure(clause)):
        if not any(name in branch.target().words.get("properties", {}) for branch in asked):
            continue
        views = views_of(prover.run, clause, name)
        if not views:
            continue
        tag = Clause(prover.run.words).absorb(views)
        values = tag.finite()
        if values is None or not 1 < len(values) <= MAX_TAGS:
            continue
        parts = []
        for known, value in values.items():
            const = Node({"const": value}, {"const": {known: value}})
            raw = {"properties": {name: {"const": value}}}
            parts.append(clause.copy().absorb([(Node(raw, {"properties": {name: const}}), Mode.RAW)]))
        return parts
    return []
