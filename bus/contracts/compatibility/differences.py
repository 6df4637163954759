"""What two versions of a schema say differently, place by place: the words of a verdict, not its proof."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from .goals import Run, entry
from .node import Node
from .objects import step_to
from .sameness import alike
from .values import CannotTell, key

MAX_DIFFERENCES: Final = 500
MAX_PATH: Final = 200
_ANNOTATIONS: Final = ("title", "description", "examples", "$id", "$comment", "deprecated", "readOnly", "writeOnly")
_DIALECT: Final = "$schema"
_STEPS: Final = {"items": "[*]", "additionalProperties": ".*"}
_BRANCHES: Final = ("allOf", "anyOf", "oneOf")
_IN_PLACE: Final = ("not", "contains", "propertyNames", "unevaluatedProperties", "unevaluatedItems")
_CONDITION: Final = ("if", "then", "else")
_PLAIN: Final = (
    "type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength",
    "maxLength", "pattern", "format", "contentEncoding", "contentMediaType", "minItems", "maxItems", "uniqueItems",
    "minContains", "maxContains", "minProperties", "maxProperties", "dependentRequired", "$dynamicRef",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where the versions differ. `breaks` is what the rules say whatever can be proven."""

    path: tuple[str, ...]
    word: str
    before: Any
    after: Any
    breaks: frozenset[str] = frozenset()
    warns: bool = False
    note: str = ""
    unsure: bool = False
    demands: bool | None = None  # of `required`: the new version asks for it


Same = Callable[[Node, Node], bool]
BOTH: Final = frozenset({"old_readers", "new_readers"})


def differences(run: Run, old: Node, new: Node, same: Same) -> list[Difference]:
    """Every difference, at most MAX_DIFFERENCES, each pair of schemas once. Iterative; spends the run's budget."""
    found: list[Difference] = []
    seen: set[tuple[int, int]] = set()
    pending: list[tuple[Node, Node, tuple[str, ...]]] = [(old, new, ())]
    while pending and len(found) < MAX_DIFFERENCES:
        before, after, path = pending.pop()
        if alike(run, before, after):
            continue
        found += _annotations(before, after, path)
        before, after = before.target(), after.target()
        if (id(before), id(after)) in seen:
            continue
        seen.add((id(before), id(after)))
        run.spend()
        if len(path) > MAX_PATH:
            raise CannotTell(f"the schemas are nested deeper than {MAX_PATH} levels")
        found += _plain(before, after, path)
        found += _objects(run, before, after, path, same, pending)
        found += _schemas(run, before, after, path, same, pending)
    return found[:MAX_DIFFERENCES]


def _annotations(old: Node, new: Node, path: tuple[str, ...]) -> Iterator[Difference]:
    for word in _ANNOTATIONS:
        before, after = entry(old, word), entry(new, word)
        if _differ(before, after):
            yield Difference(path, word, before, after)
    if not path and entry(old, _DIALECT) != entry(new, _DIALECT):
        yield Difference(path, _DIALECT, entry(old, _DIALECT), entry(new, _DIALECT))
    before, after = _default(old), _default(new)
    if _differ(before, after):
        yield Difference(
            path, "default", entry(old, "default"), entry(new, "default"), warns=None not in (before, after)
        )


def _differ(one: Any, other: Any) -> bool:
    """As JSON values; what is nested too deeply to be compared is told apart only when it is the same object."""
    if one is other:
        return False
    try:
        return key(one) != key(other)
    except CannotTell:
        return True


def _default(node: Node) -> list[Any] | None:
    return [node.raw["default"]] if isinstance(node.raw, dict) and "default" in node.raw else None


def _plain(old: Node, new: Node, path: tuple[str, ...]) -> Iterator[Difference]:
    for word in _PLAIN:
        before, after = old.words.get(word), new.words.get(word)
        if isinstance(before, dict) and isinstance(after, dict) and word != "dependentRequired":
            changed = before.keys() != after.keys()
        else:
            changed = before != after
        if changed:
            yield Difference(path, word, entry(old, word), entry(new, word))
    if "open" in old.words and "open" not in new.words:
        yield Difference(path, "x-open-enum", True, None, warns=True)


def _objects(
    run: Run, old: Node, new: Node, path: tuple[str, ...], same: Same, pending: list[tuple[Node, Node, tuple[str, ...]]]
) -> Iterator[Difference]:
    ours: dict[str, Node] = old.words.get("properties", {})
    theirs: dict[str, Node] = new.words.get("properties", {})
    pending += [(node, theirs[name], (*path, step_to(name))) for name, node in ours.items() if name in theirs]
    gone, come = [n for n in ours if n not in theirs], [n for n in theirs if n not in ours]
    yield from _renamed(run, old, new, gone, come, path, same)
    for name in gone:
        yield Difference((*path, step_to(name)), "property", ours[name].raw, None)
    for name in come:
        yield Difference((*path, step_to(name)), "property", None, theirs[name].raw)
    before, after = old.words.get("required", frozenset()), new.words.get("required", frozenset())
    for name in sorted(before ^ after):
        if (name in ours) == (name in theirs):
            raws = (ours[name].raw, theirs[name].raw) if name in ours else ({}, {})
            writer = old if name in after else new
            leans = not run.strict and name in writer.words.get("defaults", ())
            note = "holds where writers send the default; a sender of plain objects may leave it out" if leans else ""
            yield Difference(
                (*path, step_to(name)), "required", raws[0], raws[1], warns=leans, note=note, demands=name in after
            )
    closed, closes = _forbids(old), _forbids(new)
    if closed != closes:
        yield Difference((*path, ".*"), "additionalProperties", entry(old, "additionalProperties"),
                         entry(new, "additionalProperties"), warns=closes)  # fmt: skip


def _forbids(node: Node) -> bool:
    additional = node.words.get("additionalProperties")
    return additional is not None and "false" in additional.words


def _renamed(
    run: Run, old: Node, new: Node, gone: list[str], come: list[str], path: tuple[str, ...], same: Same
) -> Iterator[Difference]:
    """A property that went and one of the same shape that came: the same thing under a new name, in all likelihood."""
    ours, theirs = old.words.get("properties", {}), new.words.get("properties", {})
    covered = run.renames(new.words)
    left = [name for name in come if name not in covered.values()]
    for name in gone:
        if covered.get(name) in theirs:
            continue
        alike = [other for other in left if same(ours[name], theirs[other])]
        run.spend(len(left))
        if alike:
            nearest = max(alike, key=lambda other: difflib.SequenceMatcher(None, name, other).quick_ratio())
            left.remove(nearest)
            known = nearest in old.words.get("aliases", {}).get(name, ())  # then old readers read the new name
            breaks = BOTH - {"old_readers"} if known else BOTH
            yield Difference((*path, step_to(nearest)), "rename", name, nearest, breaks)


def _schemas(
    run: Run, old: Node, new: Node, path: tuple[str, ...], same: Same, pending: list[tuple[Node, Node, tuple[str, ...]]]
) -> Iterator[Difference]:
    for word in ("additionalProperties", "items", *_IN_PLACE):
        yield from _pair(old, new, word, (*path, _STEPS[word]) if word in _STEPS else path, pending)
    yield from _by_name(old, new, path, pending)
    yield from _tuples(old, new, path, pending)
    for word in _BRANCHES:
        yield from _branches(run, old, new, word, path, same, pending)
    if "oneOf" in old.words and "anyOf" in new.words and "oneOf" not in new.words:
        yield Difference(path, "oneOf", old.raw["oneOf"], None, frozenset({"old_readers"}), note="now anyOf")
    if "anyOf" in old.words and "oneOf" in new.words and "anyOf" not in new.words:
        yield Difference(path, "oneOf", None, new.raw["oneOf"], frozenset({"new_readers"}), note="was anyOf")
    if run.strict and (old.words.keys() & {"const", "enum"}, new.words.keys() & {"const", "enum"}) in _CONST_AND_ENUM:
        yield Difference(
            path, "const", entry(old, "const"), entry(new, "const"), BOTH, note="strict: const is not enum"
        )
    if not run.strict and not _same_condition(old, new, same):
        before = {word: entry(old, word) for word in _CONDITION if word in old.words} or None
        after = {word: entry(new, word) for word in _CONDITION if word in new.words} or None
        note = "unsupported: if/then/else is not compared, cannot tell"
        yield Difference(path, "if", before, after, BOTH, note=note, unsure=True)


_CONST_AND_ENUM: Final = (({"const"}, {"enum"}), ({"enum"}, {"const"}))


def _same_condition(old: Node, new: Node, same: Same) -> bool:
    words = [word for word in _CONDITION if word in old.words or word in new.words]
    return all(word in old.words and word in new.words and same(old.words[word], new.words[word]) for word in words)


def _pair(
    old: Node, new: Node, word: str, path: tuple[str, ...], pending: list[tuple[Node, Node, tuple[str, ...]]]
) -> Iterator[Difference]:
    before, after = old.words.get(word), new.words.get(word)
    if before is not None and after is not None:
        pending.append((before, after, path))
    elif before is not after and not (word == "additionalProperties" and _forbids(old) != _forbids(new)):
        name = "item" if word == "items" else word
        yield Difference(path, name, before.raw if before else None, after.raw if after else None)


def _by_name(
    old: Node, new: Node, path: tuple[str, ...], pending: list[tuple[Node, Node, tuple[str, ...]]]
) -> Iterator[Difference]:
    for word in ("patternProperties", "dependentSchemas"):
        ours, theirs = old.words.get(word, {}), new.words.get(word, {})
        for name in sorted(ours.keys() | theirs.keys()):
            step = (*path, f"[/{name}/]") if word == "patternProperties" else (*path, step_to(name))
            if name in ours and name in theirs:
                pending.append((ours[name], theirs[name], step))
            else:
                raws = [side[name].raw if name in side else None for side in (ours, theirs)]
                yield Difference(step, word, raws[0], raws[1])


def _tuples(
    old: Node, new: Node, path: tuple[str, ...], pending: list[tuple[Node, Node, tuple[str, ...]]]
) -> Iterator[Difference]:
    ours, theirs = old.words.get("prefixItems", ()), new.words.get("prefixItems", ())
    for index in range(max(len(ours), len(theirs))):
        step = (*path, f"[{index}]")
        if index < len(ours) and index < len(theirs):
            pending.append((ours[index], theirs[index], step))
        else:
            raws = [side[index].raw if index < len(side) else None for side in (ours, theirs)]
            yield Difference(step, "item", raws[0], raws[1])


def _branches(
    run: Run, old: Node, new: Node, word: str, path: tuple[str, ...], same: Same,
    pending: list[tuple[Node, Node, tuple[str, ...]]],
) -> Iterator[Difference]:  # fmt: skip
    """Branches are matched by meaning first: their order says nothing. What is left is matched by position."""
    ours, theirs = list(old.words.get(word, ())), list(new.words.get(word, ()))
    if not ours or not theirs:
        if ours or theirs:
            yield Difference(path, word, entry(old, word), entry(new, word))
        return
    if len(ours) == len(theirs) and all(same(a, b) for a, b in zip(ours, theirs, strict=True)):
        pending += [(a, b, path) for a, b in zip(ours, theirs, strict=True)]
        return
    for branch in list(ours):
        twin = next((other for other in theirs if same(branch, other)), None)
        if twin is not None:
            ours.remove(branch)
            theirs.remove(twin)
    pending += [(a, b, path) for a, b in zip(ours, theirs, strict=False)]
    for branch in ours[len(theirs) :]:
        yield Difference(path, word, branch.raw, None)
    for branch in theirs[len(ours) :]:
        yield Difference(path, word, None, branch.raw)
    if word == "oneOf" and word in new.words and not _discriminated(new.words[word]):
        note = "the branches have no required property that tells them apart; add one with a const each"
        yield Difference(path, "discriminator", None, None, warns=True, note=note)


def _discriminated(branches: tuple[Node, ...]) -> bool:
    """Branches of different types, or with a required property that is another const or enum in each."""
    targets = [branch.target() for branch in branches]
    types = [target.words.get("type") for target in targets]
    plain = [kind for kind in types if kind is not None]
    if len(plain) == len(types) and sum(len(kind) for kind in plain) == len(frozenset().union(*plain)):
        return not {"integer", "number"} <= frozenset().union(*plain)
    names = [target.words.get("required", frozenset()) for target in targets]
    for name in frozenset.intersection(*names) if names else ():
        values = [_tags(target, name) for target in targets]
        if all(values) and sum(len(v) for v in values) == len(frozenset().union(*values)):
            return True
    return False


def _tags(node: Node, name: str) -> frozenset[Any]:
    tag = node.words.get("properties", {}).get(name)
    words = tag.target().words if tag is not None else {}
    return frozenset(words.get("const", words.get("enum", {})))
