"""From reasons and differences to changes for a person: what, before and after, who breaks, how to mend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from .differences import Difference
from .goals import Why
from .values import CannotTell, bounded, shown

Breaks = Literal["none", "old_readers", "new_readers", "both"]
Severity = Literal["error", "warning", "info"]
MAX_CHANGES: Final = 300
_BREAKS: Final = {"backward": "new_readers", "forward": "old_readers"}


@dataclass(frozen=True, slots=True)
class Change:
    """One change between two versions.

    `path` is a JSONPath into the message (`$.theme.candidates[*].score`), `kind` a stable name (`property_added`),
    `before` and `after` the raw JSON of the place (None where there was nothing), `note` one line more where it helps.
    """

    path: str
    kind: str
    before: Any
    after: Any
    breaks: Breaks
    severity: Severity
    mend: str
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """The change as a JSON object."""
        return {
            "path": self.path, "kind": self.kind, "before": self.before, "after": self.after,
            "breaks": self.breaks, "severity": self.severity, "mend": self.mend, "note": self.note,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """A reason, and the direction that was asked when it was found."""

    why: Why
    direction: str

    @classmethod
    def of_limit(cls, refused: CannotTell, direction: str) -> Finding:
        """The comparison ended without an answer."""
        return cls(Why((), "depth", note=refused.why, unsure=True), direction)


@dataclass(slots=True)
class _Place:
    """What is known of one keyword at one path."""

    before: Any = None
    after: Any = None
    sides: set[str] = field(default_factory=set)
    warns: bool = False
    unsure: bool = False
    notes: list[str] = field(default_factory=list)


def gave_up(refused: CannotTell) -> Change:
    """The change that stands for a schema that cannot be read."""
    return Change(refused.path, "cannot_tell", None, None, "both", "error", _MENDS["cannot_tell"], refused.why)


def explain(findings: Iterable[Finding], found: Sequence[Difference], directions: Sequence[str]) -> tuple[Change, ...]:
    """Findings of both directions and the differences, merged by place: errors first, then warnings, then the rest."""
    places: dict[tuple[tuple[str, ...], str], _Place] = {}
    asked = {_BREAKS[direction] for direction in directions}
    for finding in findings:
        _add(places, finding)
    blamed = {path for path, _ in places}
    for one in found:
        beside = one.word in ("property", "required") and (one.path, "required") in places
        beside |= one.word == "required" and (one.path, "property") in places
        beside |= one.word == "property" and any((one.path, word) in places for word in ("property", "required"))
        if beside and one.word == "property" and (one.path, "property") not in places:
            continue
        place = places.setdefault((one.path, one.word), _Place(one.before, one.after))
        if place.before is None and place.after is None:
            place.before, place.after = one.before, one.after
        elif (one.path, one.word) in places and one.path in blamed and one.word != "required":
            place.before = one.before if place.before is None else place.before
            place.after = one.after if place.after is None else place.after
        place.sides |= one.breaks & asked
        place.warns |= one.warns
        place.unsure |= one.unsure
        if one.note:
            place.notes.append(one.note)
    changes = [_change(path, word, place) for (path, word), place in places.items()]
    changes.sort(key=lambda change: (_RANK[change.severity], change.path, change.kind))
    return _cut(changes)


_RANK: Final = {"error": 0, "warning": 1, "info": 2}


def _cut(changes: list[Change]) -> tuple[Change, ...]:
    if len(changes) <= MAX_CHANGES:
        return tuple(changes)
    left = changes[MAX_CHANGES:]
    note = f"{len(left)} more changes are not listed"
    return (*changes[:MAX_CHANGES], Change("$", "more_changes", None, None, "none", "info", "", note))


def _add(places: dict[tuple[tuple[str, ...], str], _Place], finding: Finding) -> None:
    why = finding.why
    before, after = (why.wrote, why.reads) if finding.direction == "backward" else (why.reads, why.wrote)
    place = places.setdefault((why.path, why.word), _Place(before, after))
    place.before = before if place.before is None else place.before
    place.after = after if place.after is None else place.after
    place.sides.add(_BREAKS[finding.direction])
    place.unsure |= why.unsure
    if why.note and why.note not in place.notes:
        place.notes.append(why.note)


def _change(path: tuple[str, ...], word: str, place: _Place) -> Change:
    breaks: Breaks = "none"
    if len(place.sides) == 2:
        breaks = "both"
    elif place.sides:
        breaks = "old_readers" if "old_readers" in place.sides else "new_readers"
    severity: Severity = "error" if place.sides else ("warning" if place.warns else "info")
    kind = "cannot_tell" if place.unsure and place.sides else _kind(word, place)
    notes = list(dict.fromkeys(place.notes))
    if kind == "cannot_tell":
        notes.insert(0, "cannot tell, which counts as breaking")
    if word == "rename":
        notes.append(f"{shown(place.before)} went and {shown(place.after)} of the same shape came")
    return Change(
        "$" + "".join(path),
        kind,
        bounded(place.before),
        bounded(place.after),
        breaks,
        severity,
        _mend(kind, word, breaks),
        "; ".join(notes),
    )


_NAMES: Final = {
    "$ref": "reference", "$schema": "dialect", "$id": "id", "$comment": "comment", "oneOf": "one_of", "anyOf": "any_of",
    "allOf": "all_of", "if": "condition", "patternProperties": "pattern_property", "x-open-enum": "open_enum",
    "propertyNames": "property_names", "additionalProperties": "additional_properties", "depth": "cannot_tell",
    "rename": "suspected_rename", "discriminator": "one_of_not_discriminated", "false": "type",
}  # fmt: skip
_WHOLE: Final = frozenset({"depth", "rename", "discriminator"})


def _kind(word: str, place: _Place) -> str:
    name = _NAMES.get(word) or "".join(f"_{c.lower()}" if c.isupper() else c for c in word).replace("$", "")
    if word in _WHOLE:
        return name
    if word == "required":
        if place.before is None:
            return "required_property_added"
        if place.after is None:
            return "required_property_removed"
        return "property_made_required" if "new_readers" in place.sides else "property_made_optional"
    if word == "enum" and isinstance(place.before, list) and isinstance(place.after, list):
        more = len(place.after) - len(place.before)
        return f"enum_{'changed' if not more else 'value_added' if more > 0 else 'value_removed'}"
    if place.before is None and place.after is not None:
        return f"{name}_added"
    return f"{name}_removed" if place.after is None and place.before is not None else f"{name}_changed"


_MENDS: Final = {
    "cannot_tell": "write it with plain keywords that can be compared, or keep it as it was",
    "suspected_rename": "keep the old name beside the new one, say x-aliases on the new one, or bump the major and "
    "write an upcaster",
    "required_property_added": "make it optional, with a default in readers, or bump the major and write an upcaster",
    "property_made_required": "leave it optional, or bump the major and write an upcaster that fills it in",
    "property_made_optional": "go on requiring it, or let every reader that requires it be upgraded first",
    "required_property_removed": "keep it and go on sending it until no reader requires it, or bump the major",
    "property_added": "allow unknown properties in readers (extra=\"ignore\"), or add it in a new major",
    "property_removed": "keep it declared, or allow unknown properties in readers",
    "enum_value_added": "mark the enum x-open-enum in the version before, add a new field beside it, or bump the major",
    "enum_value_removed": "keep the value in readers until no writer sends it, or bump the major and write an upcaster",
}  # fmt: skip


def _mend(kind: str, word: str, breaks: Breaks) -> str:
    if breaks == "none":
        return ""
    if kind in _MENDS:
        return _MENDS[kind]
    if breaks == "old_readers":
        return "add a new field beside it and leave this one as it was, or bump the major"
    return "add a new field beside it and leave this one as it was, or bump the major and write an upcaster"
