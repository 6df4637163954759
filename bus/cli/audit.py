"""The command `bus audit`: who called whom, and what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated

import orjson
import typer

from bus.cli.inspect import parse_duration
from bus.cli.operate import Servers, log_to_stderr
from bus.cli.usage import UsageError
from bus.client import Bus
from bus.errors import kind
from bus.text import clean
from bus.trust.audited import Found, Wanted, audited
from bus.trust.call_record import OK, CallRecord
from bus.trust.rules import capability_problem

SHOWN = 200
HEADER = ("TIME", "FROM", "TO", "CAPABILITY", "OUTCOME", "MS", "CALL")
WIDTHS = (23, 14, 14, 24, 28, 9)


def audit(
    agent: Annotated[str | None, typer.Option("--agent", help="Only calls to this agent.")] = None,
    sender: Annotated[str | None, typer.Option("--from", help="Only calls by this agent or client.")] = None,
    capability: Annotated[
        str | None, typer.Option("--capability", help="Only of this capability, or of a family: calculator.*")
    ] = None,
    code: Annotated[str | None, typer.Option("--code", help="Only with this outcome: ok, or an error code.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="Only ended since: 90s, 10m, 2h, 7d.")] = None,
    workflow: Annotated[str | None, typer.Option("--workflow", help="Only of this workflow.")] = None,
    denied: Annotated[bool, typer.Option("--denied", help="Only what the rules refused.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Only the newest so many; 0: all.")] = SHOWN,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what comes, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    servers: Servers = None,
) -> None:
    """Show the record of calls, the newest last: who called whom for what, what came of it, how long it took.

    Example: bus audit --agent alice --since 1h --denied
    """
    log_to_stderr("error")
    begin = datetime.now(UTC) - parse_duration(since) if since else None
    if capability is not None and (problem := capability_problem(capability)) is not None:
        raise UsageError(f"--capability: {problem}")
    wanted = Wanted(agent, sender, capability, _outcome(code), workflow, begin, denied)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_audit(servers, wanted, limit, follow, as_json))


def _outcome(code: str | None) -> str | None:
    if code is None or code == OK:
        return code
    try:
        return kind(code).code
    except KeyError:
        raise UsageError(f"--code {code!r} is neither ok nor an error code; schemas/README.md lists them") from None


async def _audit(servers: str | None, wanted: Wanted, limit: int, follow: bool, as_json: bool) -> None:
    show = _show_json if as_json else _show_line
    # The rules say who may call, not who may look; a broken file must not keep anybody from looking.
    async with Bus.connect("audit", servers=servers, rules_file="") as bus:
        found = audited(bus.connection, wanted, follow=follow)
        newest: deque[CallRecord] = deque(maxlen=limit or None)
        count = await _read_stored(found, newest)
        if not as_json and (newest or follow):
            print(_columns(HEADER))
        for record in newest:
            show(record)
        sys.stdout.flush()
        if count > len(newest):
            _say(f"{count - len(newest)} older ones are not shown; --limit 0 shows all")
        if not count and not follow:
            _say("no call is recorded that fits")
        async for one in found:
            _warn(one)
            for record in one.records if one is not None else ():
                show(record)
            sys.stdout.flush()


async def _read_stored(found: AsyncIterator[Found | None], newest: deque[CallRecord]) -> int:
    count = 0
    async for one in found:
        if one is None:
            break
        count += len(one.records)
        newest.extend(one.records)
        _warn(one)
    return count


def _warn(found: Found | None) -> None:
    if found is not None and found.dropped:
        _say(f"{found.writer} had to drop {found.dropped} records of calls: the broker was away or slow")
    if found is not None and found.unread:
        _say(f"{found.unread} records under the name of {found.writer} are passed over: unreadable, or about others")


def _show_line(record: CallRecord) -> None:
    at = record.ended_at.astimezone().isoformat(" ", "milliseconds")[:23]
    marks = [record.call_id or "?"]
    if record.is_replayed:
        marks.append("replayed")
    if record.on_behalf_of:
        marks.append(f"for {' > '.join(record.on_behalf_of)}")
    if record.reason:
        marks.append(record.reason)
    cells = (
        at,
        record.sender,
        record.agent or "-",
        record.capability,
        record.outcome,
        f"{record.elapsed_ms:.1f}",
        "  ".join(marks),
    )
    print(_columns(cells))


def _columns(cells: tuple[str, ...]) -> str:
    return clean("  ".join([*(f"{cell:<{width}}" for cell, width in zip(cells, WIDTHS, strict=False)), cells[-1]]))


def _show_json(record: CallRecord) -> None:
    print(orjson.dumps(record.wire).decode())


def _say(line: str) -> None:
    print(clean(line), file=sys.stderr)
