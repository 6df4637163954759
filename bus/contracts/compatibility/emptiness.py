"""Can any value satisfy a clause? "Empty" is said only when it is proven."""

from __future__ import annotations

from typing import Final

from .clause import Clause
from .goals import MAX_DEPTH, Prover
from .members import closure, others, views_of

MAX_BRANCHES: Final = 64
ONLY_VALUES: Final = frozenset({"enum", "const", "open", "$ref"})


def is_empty(prover: Prover, clause: Clause) -> bool:
    """True when nothing satisfies it. Impossible types are taken out of the clause, impossible values too."""
    if clause.vacant is not None:
        return clause.vacant
    clause.vacant = False  # while it is being asked: what is not known is not empty
    prover.run.spend()
    if prover.run.depth >= MAX_DEPTH:
        return False
    prover.run.depth += 1
    clause.vacant = _values(prover, clause) or _types(prover, clause) or _excluded(prover, clause)
    if not clause.vacant and clause.choices and len(clause.choices[0].branches) <= MAX_BRANCHES:
        clause.vacant = all(is_empty(prover, part) for part in clause.split())
    prover.run.depth -= 1
    return clause.vacant


def _values(prover: Prover, clause: Clause) -> bool:
    values = clause.finite()
    if values is None:
        return False
    views = [view for view in clause.views.values() if prover.run.words(view).keys() - ONLY_VALUES]
    if clause.values is not None and not views and not clause.excluded:
        return not values  # they were brought together already
    kept = {}
    for known, value in values.items():
        prover.run.spend()
        if all(prover.evaluate(value, view) is not False for view in views) and not any(
            prover.evaluate(value, view) for view in clause.excluded
        ):
            kept[known] = value
    if clause.values is not None:
        clause.values = kept
    return not kept


def _types(prover: Prover, clause: Clause) -> bool:
    if any("false" in prover.run.words(view) for view in clause.views.values()):
        return True
    impossible = set()
    if clause.types & {"number", "integer"} and _no_number(clause):
        impossible |= {"number", "integer"}
    if "string" in clause.types and clause.max_length is not None and clause.max_length < clause.min_length:
        impossible.add("string")
    if "array" in clause.types and _no_array(prover, clause):
        impossible.add("array")
    if "object" in clause.types and _no_object(prover, clause):
        impossible.add("object")
    clause.types -= impossible
    return not clause.types


def _no_number(clause: Clause) -> bool:
    low, high = clause.lowest(), clause.highest()
    if low is None or high is None:
        return False
    return low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1]))


def _no_array(prover: Prover, clause: Clause) -> bool:
    most = clause.most_items()
    if most is not None and most < clause.min_items:
        return True
    horizon = max([0, *(len(row.prefix) for row in clause.rows)])
    return any(prover.nothing(clause.item_views(index)) for index in range(min(clause.min_items, horizon + 1)))


def _no_object(prover: Prover, clause: Clause) -> bool:
    needed = closure(clause)
    if clause.max_properties is not None and max(len(needed), clause.min_properties) > clause.max_properties:
        return True
    for name in sorted(needed):
        views = views_of(prover.run, clause, name)
        if views is None or prover.nothing(views):
            return True
    return clause.min_properties > 0 and not needed and _no_member(prover, clause)


def _no_member(prover: Prover, clause: Clause) -> bool:
    from_properties = {name for group in clause.groups for name in group.properties}
    return not from_properties and not clause.names and not others(clause)


def _excluded(prover: Prover, clause: Clause) -> bool:
    return any(not prover.clause_in(clause, view) for view in clause.excluded)
