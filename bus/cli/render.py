"""How messages and dead letters look in a terminal and as JSON."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Sequence
from typing import Any

import orjson

from bus.delivery.letter import DeadLetter
from bus.text import clean
from bus.workflow.sightings import Sighting

SHOWN_BYTES = 4000
PAYLOAD_CHARS = 100


def sighting_line(seen: Sighting) -> str:
    """One message as one line: time, who to whom, type, phase, and the beginning of its payload."""
    at = seen.stored_at.astimezone().strftime("%H:%M:%S.%f")[:-3]
    if seen.envelope is None:
        what = f"{seen.subject}  {len(seen.data)} unreadable bytes"
    else:
        envelope = seen.envelope
        marks = [mark for mark in (envelope.phase, envelope.status) if mark]
        payload = orjson.dumps(envelope.payload).decode()
        short = payload if len(payload) <= PAYLOAD_CHARS else payload[: PAYLOAD_CHARS - 1] + "…"
        marked = f"[{' '.join(marks)}]  " if marks else ""
        sender = envelope.sender if seen.published_as is None else f"{seen.published_as} (as {envelope.sender})"
        what = f"{sender} > {envelope.to}  {envelope.type}  {marked}{short}"
    dead = f"DEAD {seen.seq} {seen.headers.get('Bus-Dead-Code', '')}  " if seen.kind == "dead" else ""
    return clean(f"{at}  {dead}{what}")


def sighting_json(seen: Sighting) -> dict[str, Any]:
    """One message as one JSON object; `envelope` as on the wire, or `data_base64` when it cannot be read."""
    found: dict[str, Any] = {
        "kind": seen.kind,
        "subject": seen.subject,
        "seq": seen.seq,
        "stored_at": seen.stored_at,
        "headers": dict(seen.headers),
    }
    if seen.envelope is not None:
        found["envelope"] = dict(seen.envelope.fields)
    else:
        found["data_base64"] = base64.b64encode(seen.data).decode()
    return found


def dead_letter_json(dead: DeadLetter, *, with_data: bool) -> dict[str, Any]:
    """A dead letter as JSON; with its data as the envelope and, byte for byte, as base64."""
    found: dict[str, Any] = {
        "id": dead.id,
        "agent": dead.agent,
        "code": dead.code,
        "reason": dead.reason,
        "attempts": dead.attempts,
        "failed_at": dead.failed_at,
        "origin_subject": dead.origin_subject,
        "origin_seq": dead.origin_seq,
    }
    envelope = dead.envelope()
    if dead.type:
        found["type"] = dead.type
    if envelope is not None:
        found |= {"message_id": envelope.message_id, "workflow_id": envelope.workflow_id}
    if dead.edited_from is not None:
        found["edited_from"] = dead.edited_from
    if with_data:
        found |= {"details": dead.details, "headers": dead.headers}
        found["data_base64"] = base64.b64encode(dead.data).decode()
        if envelope is not None:
            found["envelope"] = dict(envelope.fields)
    return found


def dead_letter_text(dead: DeadLetter) -> str:
    """A dead letter as a person reads it."""
    lines = [
        f"dead letter {dead.id}",
        f"  agent     {dead.agent}",
        f"  code      {dead.code}",
        f"  reason    {dead.reason}",
        f"  attempts  {dead.attempts}",
        f"  failed    {dead.failed_at.astimezone().isoformat(timespec='milliseconds')}",
        f"  from      {dead.origin_subject} (sequence {dead.origin_seq})",
    ]
    if dead.edited_from is not None:
        lines.append(
            f"  edited    from {dead.edited_from}; bus dead show {dead.id} --original has the bytes as they came"
        )
    if not dead.is_whole:
        lines.append("  lost      its bytes were kept as an object, which has been forgotten")
    details = {name: value for name, value in dead.details.items() if name != "schema"}
    lines += [f"  {name:<9} {value}" for name, value in details.items()]
    lines.append("headers")
    lines += [f"  {name}: {value}" for name, value in dead.headers.items() if not name.startswith("Bus-Dead-Details")]
    lines.append(f"message ({len(dead.data)} bytes)")
    text = [clean(line) for line in lines]
    try:
        body = orjson.dumps(orjson.loads(dead.data), option=orjson.OPT_INDENT_2).decode()
    except orjson.JSONDecodeError:
        body = dead.data[:SHOWN_BYTES].decode("utf-8", "backslashreplace")
    shown = body if len(body) <= SHOWN_BYTES else f"{body[:SHOWN_BYTES]}\n… (--json shows all of it)"
    text += [f"  {clean(line)}" for line in shown.splitlines()]
    return "\n".join(text)


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns as wide as their content; the last one is cut at the terminal's edge."""
    cells = [tuple(clean(cell) for cell in row) for row in [header, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header) - 1)]
    room = max(30, shutil.get_terminal_size((160, 24)).columns - sum(widths) - 2 * len(widths))
    return [
        "  ".join(
            [
                *(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)),
                row[-1] if len(row[-1]) <= room else f"{row[-1][: room - 1]}…",
            ]
        )
        for row in cells
    ]
