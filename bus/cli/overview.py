"""How workflows look in a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from bus.cli.render import table
from bus.cli.story import MAX_LISTED, duration, waits_lines
from bus.text import clean, one_line
from bus.workflow.checkpoints import Checkpoint
from bus.workflow.listing import Listing
from bus.workflow.overview import Overview
from bus.workflow.record import WorkflowRecord
from bus.workflow.slots import Claim

MAX_CHARS = 200
LAST_CHANGES = 8
_STYLES = {"running": "cyan", "paused": "yellow", "success": "green", "error": "bold red", "cancelled": "yellow"}


def listing_lines(listing: Listing) -> Iterator[str]:
    """The list of workflows, and how many there are."""
    now = datetime.now(UTC)
    rows = [
        (
            one.id,
            one_line(one.name, 40),
            one.status,
            one_line(one.phase or "-", 24),
            _age(one, now),
            _since(one.updated_at, now),
        )
        for one in listing.records
    ]
    if rows:
        yield from table(("id", "name", "status", "phase", "took", "changed"), rows)
    counts = ", ".join(f"{count} {status}" for status, count in listing.counts.items() if count)
    yield counts or "no workflow has a record; one begins with the first send of Bus.workflow"


def record_json(record: WorkflowRecord) -> dict[str, Any]:
    """A record as JSON, as it is stored, with its revision and without its changes."""
    return {
        "id": record.id,
        "name": record.name,
        "status": record.status,
        "phase": record.phase,
        "branch": record.branch,
        "revision": record.revision,
        "started_at": record.started_at,
        "updated_at": record.updated_at,
        "ended_at": record.ended_at,
        "error": record.error,
        "by": record.by,
        "context": record.context,
        "counts": dict(record.counts),
    }


def overview_json(found: Overview) -> dict[str, Any]:
    """An overview as JSON. Times are RFC 3339."""
    record = found.record
    return {
        **record_json(record),
        "messages": dict(found.messages),
        "phases": [
            {"name": name, "began_at": one.began_at, "ended_at": one.ended_at, "begun": one.begun}
            for name, one in record.phases.items()
        ],
        "declared": record.declared.to_wire(),
        "slots": [_claim_json(one) for one in found.holders],
        "waiting": [_claim_json(one) for one in found.waiters],
        "checkpoints": [
            {"name": one.name, "branch": one.branch, "taken_at": one.taken_at, "by": one.by, "documents": one.documents}
            for one in found.checkpoints
        ],
        "unfinished_rollback": found.unfinished,
        "changes": [one._asdict() for one in record.changes],
        "changes_before": record.changes_before,
        "waits": [
            {"agent": one.agent, "type": one.type, "state": one.state, "count": one.count, "since": one.since}
            for one in found.story.waits
        ],
    }


def overview_lines(found: Overview) -> Iterator[Text]:
    """An overview line by line, for a person: what is it, how does it stand, what does it wait for."""
    record, now = found.record, datetime.now(UTC)
    length = ("took " if record.is_ended else "for ") + _age(record, now)
    if record.error:
        length += f", {clean(record.error)}"
    yield Text.assemble(
        ("workflow ", "dim"),
        clean(f"{record.id}  {one_line(record.name, MAX_CHARS)}  "),
        (record.status, _STYLES.get(record.status, "")),
        f" {length}",
    )
    branch = f", branch {record.branch}" if record.branch else ""
    yield Text(
        clean(f"revision {record.revision}{branch}, last changed {_since(record.updated_at, now)} by {record.by}")
    )
    if record.context is not None:
        yield Text(clean(f"context {record.context}"))
    messages = found.messages
    yield Text("messages: " + ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in messages.items()))
    if found.unfinished is not None:
        again = f"bus workflow rollback {record.id} {found.unfinished}"
        yield Text(clean(f"A ROLLBACK to {found.unfinished} was begun and not finished: {again}"), "bold red")
    yield from waits_lines(found.story)
    yield from _phases(record, now)
    yield from _claims("slot", "held by ", found.holders, now)
    yield from _claims("waits", "", found.waiters, now)
    for checkpoint in found.checkpoints:
        yield Text(clean(_checkpoint(checkpoint, now)))
    earlier = record.changes_before + max(0, len(record.changes) - LAST_CHANGES)
    if earlier:
        yield Text(f"changes     {earlier} earlier ones", "dim")
    for change in record.changes[-LAST_CHANGES:]:
        yield Text(
            clean(f"{change.at:%H:%M:%S}    {one_line(change.what, MAX_CHARS)}  by {one_line(change.by, MAX_CHARS)}"),
            "dim",
        )


def _phases(record: WorkflowRecord, now: datetime) -> Iterator[Text]:
    declared = [one.name for one in record.declared.order]
    for name in [*declared, *(one for one in record.phases if one not in declared)]:
        state = record.phases.get(name)
        if state is None:
            how, style = "not begun", "dim"
        else:
            ended = state.ended_at or now
            took = duration((ended - state.began_at).total_seconds() * 1000)
            how, style = (f"running for {took}", "cyan") if state.ended_at is None else (f"took {took}", "green")
            how += f", began {state.began_at:%H:%M:%S}" + (f", time {state.begun}" if state.begun > 1 else "")
        yield Text.assemble(clean(f"phase       {one_line(name, MAX_CHARS)}  "), (how, style))


def _claims(word: str, how: str, claims: tuple[Claim, ...], now: datetime) -> Iterator[Text]:
    for one in claims[:MAX_LISTED]:
        key = f" {one.key!r}" if one.key else ""
        token = f", token {one.token}" if word == "slot" else ""
        yield Text(clean(f"{word:<12}{one.phase}{key}: {how}{one.by}, for {_for(one.since, now)}{token}"), "yellow")
    if len(claims) > MAX_LISTED:
        yield Text(f"{word:<12}and {len(claims) - MAX_LISTED} more", "yellow")


def _checkpoint(one: Checkpoint, now: datetime) -> str:
    count = counted(len(one.documents), "document")
    return f"checkpoint  {one.name}  {_since(one.taken_at, now)}, branch {one.branch}, {count}, by {one.by}"


def counted(count: int, what: str) -> str:
    """`1 message`, `2 messages`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def _claim_json(claim: Claim) -> dict[str, Any]:
    return {
        "phase": claim.phase,
        "key": claim.key,
        "branch": claim.branch,
        "by": claim.by,
        "since": claim.since,
        "token": claim.token,
    }


def _age(record: WorkflowRecord, now: datetime) -> str:
    return duration(max(0.0, ((record.ended_at or now) - record.started_at).total_seconds() * 1000))


def _for(since: datetime, now: datetime) -> str:
    return duration(max(0.0, (now - since).total_seconds() * 1000))


def _since(at: datetime, now: datetime) -> str:
    return f"{_for(at, now)} ago"
