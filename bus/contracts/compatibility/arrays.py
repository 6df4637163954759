"""Does what a writer sends keep a reader's keyword? The keywords of arrays."""

from __future__ import annotations

from typing import Any

from .clause import Clause, Row, View
from .goals import MAX_WHYS, Prover, Why, entry, wrote


def check_count(prover: Prover, clause: Clause, reader: View, word: str, asked: int) -> list[Why]:
    """`minItems` and `maxItems`; a tuple that ends has a most."""
    most = clause.most_items()
    kept = clause.min_items >= asked if word == "minItems" else most is not None and most <= asked
    return _unless(kept, clause, reader, word)


def check_items(prover: Prover, clause: Clause, reader: View, word: str, asked: Any) -> list[Why]:
    """`prefixItems` with `items`, position by position, and then the rest.

    Called for either word; with both it answers once, for `prefixItems`.
    """
    mode = reader[1]
    words = prover.run.words(reader)
    if "array" not in clause.types or (word == "items" and "prefixItems" in words):
        return []
    row = Row(words.get("prefixItems", ()), words.get("items"), mode)
    horizon = max([len(row.prefix), *(len(other.prefix) for other in clause.rows)])
    most = clause.most_items()
    found: list[Why] = []
    for index in range(horizon + 1):
        prover.run.spend()
        if len(found) >= MAX_WHYS:
            break
        target = row.prefix[index] if index < len(row.prefix) else row.rest
        if target is None or (most is not None and index >= most):
            continue
        views = clause.item_views(index)
        if prover.nothing(views):
            continue  # no array has an item here
        step = "[*]" if index == horizon else f"[{index}]"
        if "false" in target.words:
            found.append(Why((step,), "item", _raw(views), False))
            break
        whys = prover.includes(views, (target, mode))
        if whys and not views:
            whys = [Why((), "item", None, target.raw)]
        found += [why.under(step) for why in whys]
    return found


def check_contains(prover: Prover, clause: Clause, reader: View, word: str, asked: Any) -> list[Why]:
    """`contains` with its counts."""
    if "array" not in clause.types:
        return []
    mode = reader[1]
    words = prover.run.words(reader)
    low, high = words.get("minContains", 1), words.get("maxContains")
    target: View = (asked, mode)
    enough = low == 0 or any(
        least >= low and not prover.includes((view,), target) for view, least, _ in clause.contains
    )
    if not enough and clause.min_items >= low:
        ends = max([0, *(len(row.prefix) for row in clause.rows)])
        enough = all(not prover.includes(clause.item_views(index), target) for index in range(ends + 1))
    most = clause.most_items()
    few = high is None or (most is not None and most <= high)
    few = few or any(
        high is not None and top is not None and top <= high and not prover.includes((target,), view)
        for view, _, top in clause.contains
    )
    return _unless(enough and few, clause, reader, word)


def check_unique(prover: Prover, clause: Clause, reader: View, word: str, asked: bool) -> list[Why]:
    """`uniqueItems`; an array of one item at most is unique."""
    most = clause.most_items()
    return _unless(clause.unique or (most is not None and most <= 1), clause, reader, word)


def _unless(kept: bool, clause: Clause, reader: View, word: str) -> list[Why]:
    if kept or "array" not in clause.types:
        return []
    return [Why((), word, wrote(clause, word), entry(reader[0], word))]


def _raw(views: tuple[View, ...]) -> Any:
    return views[0][0].raw if views else None
