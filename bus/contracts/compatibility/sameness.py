"""Do two schemas mean the same, word for word? References are followed, names of definitions do not count."""

from __future__ import annotations

from typing import Any, Final

from .goals import Run
from .node import Node, nodes_in

_ANNOTATIONS: Final = frozenset({"defaults", "aliases"})


def same(run: Run, one: Node, other: Node, known: dict[tuple[int, int], bool]) -> bool:
    """True when all keywords and inner schemas are equal. Iterative, so never too deep; `known` remembers."""
    if alike(run, one, other):
        return True
    start = (one, other)
    pending = [start]
    seen: set[tuple[int, int]] = set()
    while pending:
        left, right = pending.pop()
        pair = (id(left), id(right))
        if left is right or pair in seen or alike(run, left, right):
            continue
        run.spend()
        answer = known.get(pair)
        if answer is None:
            seen.add(pair)
            answer = _alike(left, right, pending)
        if not answer:
            known[id(one), id(other)] = False
            return False
    known |= dict.fromkeys(seen, True)
    return True


def alike(run: Run, one: Node, other: Node) -> bool:
    """True when the texts are equal and mean the same, annotations too. False says nothing."""
    ours, theirs = one.print(), other.print()
    return (
        ours.digest is not None
        and ours.digest == theirs.digest
        and (run.shared_definitions or (not ours.refers and run.same_dialect))
    )


def _alike(left: Node, right: Node, pending: list[tuple[Node, Node]]) -> bool:
    left, right = left.target(), right.target()
    words = left.words.keys() - _ANNOTATIONS
    if "$dynamicRef" in words or words != right.words.keys() - _ANNOTATIONS:
        return False
    return all(_equal(left.words[word], right.words[word], pending) for word in words)


def _equal(one: Any, other: Any, pending: list[tuple[Node, Node]]) -> bool:
    if isinstance(one, dict):
        if not isinstance(other, dict) or one.keys() != other.keys():
            return False
        if any(isinstance(value, Node) for value in one.values()):
            pending += [(value, other[name]) for name, value in one.items()]
            return True
        return one == other if not one or isinstance(next(iter(one.values())), frozenset) else True
    ours, theirs = list(nodes_in(one)), list(nodes_in(other))
    if ours or theirs:
        pending += zip(ours, theirs, strict=False)
        return len(ours) == len(theirs)
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
