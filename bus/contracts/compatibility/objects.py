"""Does what a writer sends keep a reader's keyword? The keywords of objects."""

from __future__ import annotations

from typing import Any

from .clause import Clause, Mode, View
from .goals import MAX_WHYS, Prover, Why, entry, wrote
from .members import closure, declared, others, views_of
from .node import Node

FAMILY = ("properties", "patternProperties", "additionalProperties")


def check_members(prover: Prover, clause: Clause, reader: View, word: str, asked: Any) -> list[Why]:
    """`properties`, `patternProperties` and `additionalProperties`, which mean something together only.

    Called for each of the three; answers once, for the first that the reader has.
    """
    words = prover.run.words(reader)
    if "object" not in clause.types or word != next(name for name in FAMILY if name in words):
        return []
    found: list[Why] = []
    names = declared(clause)
    renames = {old: new for old, new in prover.run.renames(words).items() if old in names and new not in names}
    taken_over = set(renames.values())
    for name in sorted(names | words.get("properties", {}).keys()):
        if len(found) >= MAX_WHYS:
            return found  # it breaks already, and nobody reads more
        if name not in taken_over:
            whys = _member(prover, clause, reader, name, renames.get(name, name))
            prover.run.spend(len(whys))
            step = step_to(name)
            found += [why.under(step) for why in whys]
    return found + _undeclared(prover, clause, reader)


def _member(prover: Prover, clause: Clause, reader: View, name: str, read_as: str) -> list[Why]:
    words, mode = prover.run.words(reader), reader[1]
    patterns: dict[str, Node] = words.get("patternProperties", {})
    target: Node | None = words.get("properties", {}).get(read_as)
    hits = {pattern: prover.run.matches(pattern, read_as) for pattern in patterns}
    asked = [node for node in (target,) if node is not None]
    if not prover.run.strict:
        asked += [patterns[pattern] for pattern, hit in hits.items() if hit is not False]
    extra = target is None and not any(hits.values()) and words.get("additionalProperties") is not None
    if not asked and not extra:
        return []
    views = views_of(prover.run, clause, name)
    if views is None:
        return []  # the writer never sends it
    ours = any(name in group.properties for group in clause.groups)
    if extra:
        node = words["additionalProperties"]
        if "false" in node.words:
            if prover.nothing(views):
                return []
            return [Why((), "property", views[0][0].raw if views else {}, None, "the reader forbids it")]
        asked.append(node)  # beside patterns of which it is not known whether they match
    found = [why for node in asked for why in prover.includes(views, (node, mode))]
    if found and target is not None and not ours:
        return [Why((), "property", None, target.raw, "the writer may send anything under this name")]
    return found


def _undeclared(prover: Prover, clause: Clause, reader: View) -> list[Why]:
    """Names that neither side declares."""
    words, mode = prover.run.words(reader), reader[1]
    patterns: dict[str, Node] = words.get("patternProperties", {})
    additional: Node | None = words.get("additionalProperties")
    if not patterns and additional is None:
        return []
    found: list[Why] = []
    classes = [one for one in others(clause) if not prover.nothing(one.views)]
    known = {one.pattern for one in classes}
    for pattern, node in {} if prover.run.strict else patterns.items():
        step = f"[/{pattern}/]"
        for one in classes:
            # Where the writer has this pattern too, a name that matches it is in that class.
            if one.pattern == pattern or (pattern not in known and not _writer_has(clause, pattern)):
                whys = prover.includes(one.views, (node, mode))
                if whys and one.pattern != pattern:
                    whys = [Why((), "patternProperties", None, node.raw)]
                found += [why.under(step) for why in whys[:MAX_FROM_PATTERN]]
    for one in classes:
        if additional is not None and one.pattern not in patterns:
            step = ".*" if one.pattern is None else f"[/{one.pattern}/]"
            whys = prover.includes(one.views, (additional, mode))
            if whys and (one.pattern is None and (not one.views or "false" in additional.words)):
                whys = [Why((), "additionalProperties", wrote(clause, "additionalProperties"), additional.raw)]
            found += [why.under(step) for why in whys]
    return found


MAX_FROM_PATTERN = 20


def _writer_has(clause: Clause, pattern: str) -> bool:
    return any(pattern in group.patterns for group in clause.groups)


def check_required(prover: Prover, clause: Clause, reader: View, word: str, asked: frozenset[str]) -> list[Why]:
    """`required`: the writer always sends them."""
    if "object" not in clause.types:
        return []
    words = prover.run.words(reader)
    sent = closure(clause)
    sent |= {new for old, new in prover.run.renames(words).items() if old in sent}
    found = []
    for name in sorted(asked - sent):
        ours = [group.properties[name].raw for group in clause.groups if name in group.properties]
        node = words.get("properties", {}).get(name)
        theirs = {} if node is None else node.raw
        found.append(Why((step_to(name),), "required", ours[0] if ours else None, theirs))
    return found


def check_count(prover: Prover, clause: Clause, reader: View, word: str, asked: int) -> list[Why]:
    """`minProperties` and `maxProperties`."""
    if "object" not in clause.types:
        return []
    if word == "minProperties":
        kept = max(clause.min_properties, len(closure(clause))) >= asked
    else:
        kept = clause.max_properties is not None and clause.max_properties <= asked
        if not kept and not others(clause):
            possible = [name for name in declared(clause) if views_of(prover.run, clause, name) is not None]
            kept = len(possible) <= asked
    return [] if kept else [Why((), word, wrote(clause, word), entry(reader[0], word))]


def check_names(prover: Prover, clause: Clause, reader: View, word: str, asked: Node) -> list[Why]:
    """`propertyNames`: every name that the writer may send."""
    if "object" not in clause.types:
        return []
    target = (asked, reader[1])
    bad = [
        name
        for name in sorted(declared(clause))
        if prover.evaluate(name, target) is not True and views_of(prover.run, clause, name) is not None
    ]
    if not bad and (not others(clause) or not prover.includes((*clause.names, (_TEXT, Mode.RAW)), target)):
        return []
    return [Why((), word, wrote(clause, word), asked.raw, f"for example {bad[0]!r}" if bad else "")]


_TEXT = Node({"type": "string"}, {"type": frozenset({"string"})})


def check_dependent(prover: Prover, clause: Clause, reader: View, word: str, asked: Any) -> list[Why]:
    """`dependentRequired` and `dependentSchemas`: they count only where the writer may send the name."""
    if "object" not in clause.types:
        return []
    found = []
    for name, wanted in sorted(asked.items()):
        if views_of(prover.run, clause, name) is None:
            continue
        with_name = clause.copy()
        with_name.required.add(name)
        with_name.absorb([view for other, view in clause.dependent_schemas if other == name])
        if word == "dependentRequired":
            kept = wanted <= closure(with_name)
        else:
            kept = not prover.clause_in(with_name, (wanted, reader[1]))
        if not kept:
            raw = wanted.raw if isinstance(wanted, Node) else sorted(wanted)
            ours = wrote(clause, word)
            found.append(Why((step_to(name),), word, ours.get(name) if isinstance(ours, dict) else None, raw))
    return found


def step_to(name: str) -> str:
    """The step of a JSONPath to a member: `.name`, or `['a b']`."""
    return f".{name}" if name.isidentifier() else "[" + repr(name) + "]"
