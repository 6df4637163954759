"""Commands that look: tail, doctor."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated

import orjson
import typer

from bus.cli.operate import Servers, log_to_stderr
from bus.cli.render import sighting_json, sighting_line
from bus.cli.usage import UsageError
from bus.client import Bus
from bus.config import Settings
from bus.doctor import Grade, examine
from bus.text import clean

As_json = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
MAX_SINCE_S = 3650 * 86400
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def tail(
    workflow: Annotated[str | None, typer.Option("--workflow", help="Only this workflow, from its beginning.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="Only to or from this agent.")] = None,
    type: Annotated[str | None, typer.Option("--type", help="Only this message type.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="Begin in the past: 90s, 10m, 2h, 7d.")] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Go on with what comes.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    servers: Servers = None,
) -> None:
    """Show what passes on the bus, one line a message, until Ctrl-C.

    Example: bus tail --agent writer --since 10m
    """
    log_to_stderr("warning")
    begin = datetime.now(UTC) - parse_duration(since) if since else None
    if begin is None and (workflow is not None or not follow):
        begin = datetime.fromtimestamp(0, UTC)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_tail(servers, workflow, agent, type, begin, follow, as_json))


async def _tail(
    servers: str | None,
    workflow_id: str | None,
    agent: str | None,
    type: str | None,
    since: datetime | None,
    follow: bool,
    as_json: bool,
) -> None:
    async with (
        Bus.connect("tail", servers=servers) as bus,
        # Closed before the connection, also when whoever reads the lines has gone.
        contextlib.aclosing(
            bus.watch(workflow_id=workflow_id, agent=agent, type=type, since=since, follow=follow)
        ) as seen,
    ):
        async for sighting in seen:
            line = orjson.dumps(sighting_json(sighting)).decode() if as_json else sighting_line(sighting)
            print(line, flush=True)


def parse_duration(text: str) -> timedelta:
    """`90s`, `10m`, `2h` or `7d`. Raises UsageError."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is not a duration such as 90s, 10m, 2h or 7d")
    seconds = float(found[1]) * _SECONDS[found[2]]
    if seconds > MAX_SINCE_S:
        raise UsageError(f"{text!r} is longer than anything is kept; at most 3650d")
    return timedelta(seconds=seconds)


def doctor(as_json: As_json = False, servers: Servers = None) -> None:
    """Say what is wrong with this set-up and how to mend it.

    Example: bus doctor
    """
    log_to_stderr("error")
    sys.exit(asyncio.run(_doctor(servers, as_json)))


async def _doctor(servers: str | None, as_json: bool) -> int:
    # What is wrong with the rules is a finding; it must not keep the doctor away.
    rules_file = Settings.load().rules_file
    async with Bus.connect("doctor", servers=servers, rules_file="") as bus:
        findings = await examine(bus.connection, rules_file=rules_file)
    bad = sum(finding.grade is Grade.BAD for finding in findings)
    if as_json:
        print(orjson.dumps(findings, option=orjson.OPT_INDENT_2).decode())
    else:
        for finding in findings:
            mark = {Grade.GOOD: "ok", Grade.NOTICE: "look", Grade.BAD: "WRONG"}[finding.grade]
            print(f"{mark:<6} {finding.subject:<13} {clean(finding.message)}")
            if finding.mend:
                print(f"{'':<20} {clean(finding.mend)}")
        print("nothing is wrong" if not bad else f"{bad} thing{'s' if bad > 1 else ''} wrong")
    return 1 if bad else 0
