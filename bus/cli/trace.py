"""The command `bus trace`: the story of one workflow."""

from __future__ import annotations

import asyncio
import difflib
import sys
from datetime import UTC, datetime
from typing import Annotated

import orjson
import typer
from rich.console import Console

from bus.cli.inspect import As_json, parse_duration
from bus.cli.operate import Servers, log_to_stderr
from bus.cli.story import print_story, story_json
from bus.client import Bus
from bus.text import clean
from bus.workflow.story import LOST, Story

NEAR = 3


def trace(
    workflow: Annotated[str, typer.Argument(metavar="WORKFLOW_ID", help="The id, or the beginning of it.")],
    since: Annotated[
        str | None, typer.Option("--since", help="Read from 90s, 10m, 2h, 7d ago; else from the time in the id.")
    ] = None,
    as_json: As_json = False,
    servers: Servers = None,
) -> None:
    """Show the story of a workflow: what caused what, how long it took, what it waits for, and why.

    Exit code 1 when nothing is known of it.

    Example: bus trace 0193a1b2-c3d4-7000-8000-0c1d2e3f4a5b
    """
    log_to_stderr("error")
    begin = datetime.now(UTC) - parse_duration(since) if since else None
    sys.exit(asyncio.run(_trace(servers, workflow, begin, as_json)))


async def _trace(servers: str | None, workflow_id: str, since: datetime | None, as_json: bool) -> int:
    async with Bus.connect("trace", servers=servers) as bus:
        story = await bus.trace(workflow_id, since=since)
        if not story.steps:
            known = await bus.workflows(since=since)
            matching = [one for one in known if workflow_id and one.startswith(workflow_id)]
            if len(matching) == 1:
                story = await bus.trace(matching[0], since=since)
            if not story.steps:
                print(f"error: {clean(_unknown(workflow_id, matching, known))}", file=sys.stderr)
                return 1
    _print(story, as_json)
    return 0


def _print(story: Story, as_json: bool) -> None:
    if as_json:
        print(orjson.dumps(story_json(story), option=orjson.OPT_INDENT_2).decode())
    else:
        print_story(story, Console())
        if any(step.state in LOST for step in story.steps):
            print("bus dead show ID tells all of a dead letter")


def _unknown(workflow_id: str, matching: list[str], known: list[str]) -> str:
    if matching:
        shown = ", ".join(matching[-NEAR:])
        return f"{len(matching)} workflows begin with {workflow_id}, the newest are {shown}; write more of the id"
    near = difflib.get_close_matches(workflow_id, known[-1000:], NEAR)
    hint = f"; near it: {', '.join(near)}" if near else "; `bus tail --since 1h` shows what passed"
    return f"no message of the workflow {workflow_id} is known{hint}"
