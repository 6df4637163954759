"""What the members of an object that a writer sends are known to be: by name, and for the names nobody declared."""

from __future__ import annotations

from dataclasses import dataclass

from .clause import Clause, Mode, View
from .evaluate import evaluate
from .goals import Run


@dataclass(frozen=True, slots=True)
class Others:
    """A class of undeclared names: those that match `pattern` of the writer, or (None) none that is known."""

    pattern: str | None
    views: tuple[View, ...]


def declared(clause: Clause) -> set[str]:
    """Names that the writer's schemas mention: as property, as required, as the only names allowed."""
    names = set(clause.required)
    for group in clause.groups:
        names |= group.properties.keys()
    for view in clause.names:
        names |= allowed_names(view) or set()
    return names


def allowed_names(view: View) -> set[str] | None:
    """The names that a `propertyNames` with an enum allows; None when it is no plain list."""
    node = view[0]
    while "$ref" in node.words and "enum" not in node.words:
        node = node.words["$ref"]
    values = node.words.get("enum", node.words.get("const"))
    return None if values is None else {value for value in values.values() if isinstance(value, str)}


def views_of(run: Run, clause: Clause, name: str) -> tuple[View, ...] | None:
    """What the member `name` satisfies; None when an object never has it. Too wide where a pattern is not known."""
    run.spend()
    found: list[View] = []
    known = name in clause.sent
    for group in clause.groups:
        matched: bool | None = False
        if name in group.properties:
            found.append((group.properties[name], group.mode))
            matched = True
        for pattern, node in group.patterns.items():
            hit = run.matches(pattern, name)
            if hit:
                found.append((node, group.mode))
                matched = True
            elif hit is None and not matched:
                matched = None
        known |= group.mode is Mode.WRITER and matched is not False
        if matched is False and group.additional is not None:
            found.append((group.additional, group.mode))
    if clause.closed and not known:
        return None
    if any("false" in node.words for node, _ in found):
        return None
    if any(evaluate(run, name, view) is False for view in clause.names):
        return None
    return tuple(found)


def others(clause: Clause) -> list[Others]:
    """The classes of undeclared names that an object may have; none when it is closed."""
    if any(allowed_names(view) is not None for view in clause.names):
        return []
    patterns = {pattern for group in clause.groups for pattern in group.patterns}
    found: list[Others] = []
    for pattern in [*sorted(patterns), *([] if clause.closed else [None])]:
        views: list[View] = []
        for group in clause.groups:
            if pattern is not None and pattern in group.patterns:
                views.append((group.patterns[pattern], group.mode))
            elif group.additional is not None and (pattern is None or not group.patterns):
                views.append((group.additional, group.mode))
        if not any("false" in node.words for node, _ in views):
            found.append(Others(pattern, tuple(views)))
    return found


def closure(clause: Clause) -> set[str]:
    """Every name that is required, by itself or because another one is."""
    names = set(clause.required)
    waiting = list(names)
    while waiting:
        for name in clause.dependent.get(waiting.pop(), frozenset()) - names:
            names.add(name)
            waiting.append(name)
    return names
