"""The catalogue as one Markdown document."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from bus.contracts.sheet import Form, Sheet

_PATH = re.compile(r"[A-Za-z0-9_.\[\]{}-]+")
_ACTIVE = re.compile(r"([\\|*_\[\]#])")


def markdown(sheets: Sequence[Sheet], *, title: str) -> str:
    """A document with one section a contract. Texts of the contracts are escaped: they are other people's words."""
    lines = [f"# {_plain(title)}", "", "| type | version | owner | sent by | received by |", "|---|---|---|---|---|"]
    for sheet in sheets:
        cells = (f"[{_plain(sheet.type)}](#{sheet.type})", sheet.history[0].version, _plain(sheet.owner) or "nobody")
        lines.append(f"| {' | '.join(cells)} | {_parties(sheet.senders)} | {_parties(sheet.receivers)} |")
    for sheet in sheets:
        lines += ["", *_section(sheet)]
    return "\n".join(lines) + "\n"


def _section(sheet: Sheet) -> Iterable[str]:
    yield f"## {sheet.type}"
    yield ""
    yield f"{_plain(sheet.forms[0].description) or 'No description.'}"
    yield ""
    yield f"- owner: {_plain(sheet.owner) or 'nobody'}"
    yield f"- from {_parties(sheet.senders)} to {_parties(sheet.receivers)}"
    yield f"- compatibility: {sheet.mode}"
    if sheet.model:
        yield f"- model: `{sheet.model}`"
    for path, why in sorted(sheet.reserved.items()):
        yield f"- retired name: {_code(path)} ({_plain(why)})"
    for form in sheet.forms:
        yield ""
        yield from _form(sheet, form)
    yield ""
    yield "### History"
    yield ""
    for past in sheet.history:
        when = past.released.isoformat() if past.released else "not released"
        note = f": {_plain(past.note)}" if past.note else ""
        yield f"- **{past.version}**, {when}{note}"
        if past.accepted:
            yield f"  - breaks readers; accepted: {_plain(past.accepted)}"
        for change in past.changes:
            yield f"  - {_plain(change)}"


def _form(sheet: Sheet, form: Form) -> Iterable[str]:
    yield f"### {sheet.type}@{form.version}"
    yield ""
    if form.rows:
        yield "| field | type | required | meaning |"
        yield "|---|---|---|---|"
        for row in form.rows:
            required = "yes" if row.is_required else "no"
            yield f"| {_code(row.path)} | {_plain(row.shape)} | {required} | {_plain(row.description)} |"
    else:
        yield "It has no fields that can be listed."
    if form.example:
        yield ""
        yield "```json"
        yield from form.example.splitlines()
        yield "```"


def _parties(names: Sequence[str]) -> str:
    return ", ".join("everybody" if name == "*" else _plain(name) for name in names) or "nobody says"


def _plain(text: str) -> str:
    """Text that Markdown shows as it is: one line, no tags, no links, no table cells."""
    line = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    parts = line.split("`")
    if len(parts) % 2 == 0:
        return _ACTIVE.sub(r"\\\1", line.replace("`", "'"))
    return "`".join(
        part.replace("|", "\\|") if index % 2 else _ACTIVE.sub(r"\\\1", part) for index, part in enumerate(parts)
    )


def _code(text: str) -> str:
    """A field's path as code; one with characters that no field should have as plain text."""
    return f"`{text}`" if _PATH.fullmatch(text) else _plain(text)
