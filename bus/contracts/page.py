"""The catalogue as one HTML page: no scripts, nothing loaded from elsewhere, every text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from bus.contracts.sheet import Form, Sheet

_STYLE: Final = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:72rem}
table{border-collapse:collapse;width:100%;margin:.5rem 0;display:block;overflow-x:auto}
th,td{border-bottom:1px solid #8886;padding:.3rem .6rem;text-align:left;vertical-align:top}
code,pre{font:14px/1.4 ui-monospace,monospace}
pre{background:#8882;padding:.8rem;overflow-x:auto}
section{border-top:2px solid #8886;margin-top:2rem}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem}
dd{margin:0}
""".strip()


def page(sheets: Sequence[Sheet], *, title: str) -> str:
    """A page that a browser shows from a file, with one section a contract, linked from a table at the top."""
    rows = [
        f'<tr><td><a href="#{_attr(sheet.type)}">{_text(sheet.type)}</a></td><td>{_text(sheet.history[0].version)}</td>'
        f"<td>{_text(sheet.owner or 'nobody')}</td><td>{_parties(sheet.senders)}</td>"
        f"<td>{_parties(sheet.receivers)}</td></tr>"
        for sheet in sheets
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_text(title)}</title>",
            f"<style>{_STYLE}</style>",
            "</head>",
            "<body>",
            f"<h1>{_text(title)}</h1>",
            f"<table>{_head('type', 'version', 'owner', 'sent by', 'received by')}",
            f"<tbody>{''.join(rows)}</tbody></table>",
            *(line for sheet in sheets for line in _section(sheet)),
            "</body>",
            "</html>",
            "",
        ]
    )


def _section(sheet: Sheet) -> Iterable[str]:
    yield f'<section id="{_attr(sheet.type)}">'
    yield f"<h2>{_text(sheet.type)}</h2>"
    yield f"<p>{_text(sheet.forms[0].description or 'No description.')}</p>"
    yield "<dl>"
    yield f"<dt>owner</dt><dd>{_text(sheet.owner or 'nobody')}</dd>"
    yield f"<dt>from, to</dt><dd>{_parties(sheet.senders)} to {_parties(sheet.receivers)}</dd>"
    yield f"<dt>compatibility</dt><dd>{_text(sheet.mode)}</dd>"
    if sheet.model:
        yield f"<dt>model</dt><dd><code>{_text(sheet.model)}</code></dd>"
    for path, why in sorted(sheet.reserved.items()):
        yield f"<dt>retired name</dt><dd><code>{_text(path)}</code> ({_text(why)})</dd>"
    yield "</dl>"
    for form in sheet.forms:
        yield from _form(sheet, form)
    yield "<h3>History</h3>"
    yield "<ul>"
    for past in sheet.history:
        when = past.released.isoformat() if past.released else "not released"
        note = f": {_text(past.note)}" if past.note else ""
        below = [*([f"breaks readers; accepted: {past.accepted}"] if past.accepted else []), *past.changes]
        inner = f"<ul>{''.join(f'<li>{_text(one)}</li>' for one in below)}</ul>" if below else ""
        yield f"<li><strong>{_text(past.version)}</strong>, {when}{note}{inner}</li>"
    yield "</ul>"
    yield "</section>"


def _form(sheet: Sheet, form: Form) -> Iterable[str]:
    yield f"<h3>{_text(sheet.type)}@{_text(form.version)}</h3>"
    if form.rows:
        yield f"<table>{_head('field', 'type', 'required', 'meaning')}<tbody>"
        for row in form.rows:
            cells = f"<td><code>{_text(row.path)}</code></td><td>{_text(row.shape)}</td>"
            required = "yes" if row.is_required else "no"
            yield f"<tr>{cells}<td>{required}</td><td>{_text(row.description)}</td></tr>"
        yield "</tbody></table>"
    else:
        yield "<p>It has no fields that can be listed.</p>"
    if form.example:
        yield f"<pre>{_text(form.example)}</pre>"


def _head(*names: str) -> str:
    return f"<thead><tr>{''.join(f'<th>{name}</th>' for name in names)}</tr></thead>"


def _parties(names: Sequence[str]) -> str:
    return ", ".join("everybody" if name == "*" else _text(name) for name in names) or "nobody says"


def _text(text: str) -> str:
    return escape(text, quote=False)


def _attr(text: str) -> str:
    return escape(text, quote=True)
