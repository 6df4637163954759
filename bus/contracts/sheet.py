"""What the documents say of one contract, apart from how they look: its parties, fields, examples and history."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from bus.contracts.catalogue import Contract, Version
from bus.contracts.fields import Field, fields_of
from bus.contracts.lint import OPEN_ENUM
from bus.contracts.version import show_version

MAX_ENUM: Final = 20
_NUMBERS: Final = (
    ("minimum", "at least {}"), ("exclusiveMinimum", "above {}"),
    ("maximum", "at most {}"), ("exclusiveMaximum", "below {}"), ("multipleOf", "a multiple of {}"),
)  # fmt: skip
_SIZES: Final = (("minLength", "maxLength", "character"), ("minItems", "maxItems", "item"))
_TEXTS: Final = (("pattern", "matches {}"), ("format", "{}"))


@dataclass(frozen=True, slots=True)
class Row:
    """One field: its path, its type in words, whether it must be there, what it means."""

    path: str
    shape: str
    is_required: bool
    description: str


@dataclass(frozen=True, slots=True)
class Past:
    """One version in the history: the day of its release (None: a working version), the note, the changes before it."""

    version: str
    released: date | None
    note: str
    accepted: str
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Form:
    """One major, by its newest version: fields and an example as indented JSON (empty without one)."""

    version: str
    description: str
    rows: tuple[Row, ...]
    example: str


@dataclass(frozen=True, slots=True)
class Sheet:
    """One contract. `forms` has the newest major first, `history` the newest version first."""

    type: str
    title: str
    owner: str
    mode: str
    model: str
    senders: tuple[str, ...]
    receivers: tuple[str, ...]
    reserved: Mapping[str, str]
    forms: tuple[Form, ...]
    history: tuple[Past, ...]


def sheet_of(contract: Contract) -> Sheet:
    """The sheet of a contract."""
    entry, newest = contract.entry, contract.newest
    befores: Sequence[Version | None] = (None, *contract.versions)
    history = [_past(before, version) for before, version in zip(befores, contract.versions, strict=False)]
    title = newest.schema.get("title") if isinstance(newest.schema, dict) else None
    return Sheet(
        type=contract.type,
        title=title if isinstance(title, str) else contract.type,
        owner=entry.owner,
        mode=f"{entry.mode}{', strict' if entry.strict else ''}",
        model=entry.model or "",
        senders=entry.senders,
        receivers=entry.receivers,
        reserved=entry.reserved,
        forms=tuple(_form(contract.of_major(major)[-1]) for major in reversed(contract.majors)),
        history=tuple(reversed(history)),
    )


def changes(before: Version, after: Version) -> Iterator[str]:
    """What is different between two versions, field by field, in words."""
    old, new = fields_of(before.schema).paths, fields_of(after.schema).paths
    for path, field in new.items():
        if path not in old:
            yield f"added `{path}` ({'required' if field.is_required else 'optional'} {_shape(field)})"
    for path in old:
        if path not in new:
            yield f"removed `{path}`"
    for path, field in new.items():
        if path in old:
            was = old[path]
            if _shape(was) != _shape(field):
                yield f"`{path}` was {_shape(was)}, is {_shape(field)}"
            if was.is_required != field.is_required:
                yield f"`{path}` is {'required' if field.is_required else 'optional'} now"


def _past(before: Version | None, version: Version) -> Past:
    release = version.release
    return Past(
        show_version(version.number),
        version.released,
        release.note if release else "",
        release.accepted if release else "",
        tuple(changes(before, version)) if before else (),
    )


def _form(version: Version) -> Form:
    schema: Mapping[str, Any] = version.schema if isinstance(version.schema, dict) else {}
    examples = schema.get("examples")
    example = json.dumps(examples[0], indent=2, ensure_ascii=False) if isinstance(examples, list) and examples else ""
    rows = [Row(one.path, _shape(one), one.is_required, _text(one.says("description"))) for one in fields_of(schema)]
    return Form(show_version(version.number), _text(schema.get("description")), tuple(rows), example)


def _shape(field: Field) -> str:
    """The type of a field in words: `integer, at least 0`, `array of string or null`."""
    names = list(field.types)
    if "array" in names and field.items:
        names[names.index("array")] = f"array of {' or '.join(field.items)}"
    words = [" or ".join([*names, *(["null"] if field.is_nullable else [])]) or "anything"]
    for keyword, text in _NUMBERS:
        value = field.says(keyword)
        if isinstance(value, int | float) and not isinstance(value, bool):
            words.append(text.format(value))
    words += [_size(field.says(least), field.says(most), unit) for least, most, unit in _SIZES]
    words += [text.format(field.says(keyword)) for keyword, text in _TEXTS if isinstance(field.says(keyword), str)]
    words += _allowed(field)
    if (default := _default(field)) is not None:
        words.append(default)
    return ", ".join(word for word in words if word)


def _size(least: Any, most: Any, unit: str) -> str:
    """`1 to 7 items`, `at most 1 character`; empty without a limit."""
    if least is None and most is None:
        return ""
    count = least if most is None else most
    said = (
        f"{least} to {most}"
        if least and most is not None
        else f"at least {least}"
        if most is None
        else f"at most {most}"
    )
    return f"{said} {unit}{'' if count == 1 else 's'}"


def _allowed(field: Field) -> Iterator[str]:
    const, enum = field.says("const"), field.says("enum")
    if const is not None:
        yield f"always {_json(const)}"
    if isinstance(enum, list):
        listed = ", ".join(_json(one) for one in enum[:MAX_ENUM])
        more = f" and {len(enum) - MAX_ENUM} more" if len(enum) > MAX_ENUM else ""
        yield f"one of {listed}{more}{'; may grow' if field.says(OPEN_ENUM) is True else ''}"


def _default(field: Field) -> str | None:
    node = next((one for one in field.nodes if "default" in one), None)
    return None if node is None else f"default {_json(node['default'])}"


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _text(value: Any) -> str:
    return " ".join(value.split()) if isinstance(value, str) else ""
