"""The command that replays a workflow against a changed agent."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.text import Text

from bus.cli.inspect import As_json
from bus.cli.operate import Servers, load_agent, log_to_stderr
from bus.cli.usage import UsageError
from bus.client import Bus
from bus.config import Settings
from bus.errors import BusError
from bus.testing.replay import replay
from bus.text import clean
from bus.workflow.comparison import Compared, Comparison, Handling, Verdict, shown
from bus.workflow.recording import Recording, record

_MARKS = {
    Verdict.SAME: ("=", "dim"),
    Verdict.CHANGED: ("~", "yellow"),
    Verdict.ADDED: ("+", "green"),
    Verdict.MISSING: ("-", "red"),
}


def replay_workflow(
    workflow: Annotated[
        str, typer.Argument(metavar="WORKFLOW_ID|FILE", help="A workflow that has ended, or a file made by --save.")
    ],
    agent: Annotated[str | None, typer.Argument(metavar="MODULE:AGENT", help="The agent to run again.")] = None,
    save: Annotated[
        Path | None, typer.Option("--save", help="Write the recording to this file, for later and for tests.")
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="PATH", help="What may differ, such as payload.at or payload.items.*.id."),
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds for one message to settle.")] = 60.0,
    as_json: As_json = False,
    servers: Servers = None,
) -> None:
    """Run an agent against a recorded workflow, and show what it does otherwise than then.

    The others are played by the recording, on a private broker; calls get the answers of then, when the workflow was
    begun with `record=True`. Exit code 0 when everything is the same, 1 when something differs.

    Example: bus workflow replay 0193a1b2-c3d4-7000-8000-0c1d2e3f4a5b agents.reviewer:reviewer
    """
    log_to_stderr("error")
    if agent is None and save is None:
        raise UsageError("say which MODULE:AGENT to run, or --save FILE")
    recording = _recording(workflow, servers)
    if save is not None:
        save.write_bytes(recording.to_json())
        print(f"{save}: {len(recording)} messages, {len(recording.calls)} calls, {len(recording.artifacts)} artifacts")
    if agent is None:
        return
    # What fails here may be meant to; the comparison says it.
    logging.getLogger("bus").setLevel(logging.CRITICAL)
    loaded = load_agent(agent)
    try:
        found = asyncio.run(
            replay(
                recording,
                loaded,
                ignore=ignore or (),
                timeout_s=timeout,
                nats_server=Settings.load().nats_server,
            )
        )
    except (ValueError, TimeoutError) as problem:
        print(f"error: {clean(str(problem))}", file=sys.stderr)
        sys.exit(1)
    if as_json:
        print(orjson.dumps(found.to_json(), option=orjson.OPT_INDENT_2).decode())
    else:
        console = Console()
        for line in comparison_lines(found):
            console.print(line, soft_wrap=True, highlight=False, markup=False)
    sys.exit(0 if found.is_same else 1)


def comparison_lines(comparison: Comparison) -> Iterator[Text]:
    """A comparison line by line: each message to the agent, below it what the agent did, and the sums."""
    for handling in comparison.handlings:
        yield _head(handling)
        for one in handling.deeds:
            if one.what == "outcome" and one.verdict is Verdict.SAME:
                continue
            yield from _deed(one)
    yield Text()
    if comparison.unfed:
        yield Text(f"{comparison.unfed} recorded messages were not given: what had led to them is missing", "red")
    counts = ", ".join(f"{count} {verdict}" for verdict, count in comparison.count().items())
    verdict = "the same as recorded" if comparison.is_same else "DIFFERENT from what was recorded"
    yield Text(f"{comparison.agent} is {verdict}: {counts}", "green" if comparison.is_same else "bold red")


def _head(handling: Handling) -> Text:
    return Text(clean(f"{handling.sender} > {handling.type}  {handling.message_id}"))


def _deed(one: Compared) -> Iterator[Text]:
    mark, style = _MARKS[one.verdict]
    phase = f"  [{one.phase}]" if one.phase else ""
    led = f", with {one.led_to} more that it had led to" if one.led_to else ""
    what = {"outcome": "ended as", "call": "call", "message": ""}[one.what]
    yield Text(clean(f"  {mark} {what} {one.name}{phase}  {one.verdict}{led}".replace("  ", " ", 1)), style)
    for change in one.changes:
        yield Text(clean(f"      {change.path}: {shown(change.before)} -> {shown(change.after)}"), style)


def _recording(workflow: str, servers: str | None) -> Recording:
    path = Path(workflow)
    if path.suffix == ".json" or path.is_file():
        try:
            return Recording.read(path)
        except OSError as problem:
            raise UsageError(f"cannot read {workflow}: {problem.strerror}") from None
    if not workflow:
        raise UsageError("the id of a workflow is not empty")
    return asyncio.run(_recorded(workflow, servers))


async def _recorded(workflow_id: str, servers: str | None) -> Recording:
    async with Bus.connect("replay", servers=servers) as bus:
        story = await bus.trace(workflow_id)
        if not story.steps:
            matching = [one for one in await bus.workflows() if one.startswith(workflow_id)]
            if len(matching) > 1:
                raise BusError("tool.execution_failed", f"{len(matching)} workflows begin with {workflow_id}")
            story = await bus.trace(matching[0]) if matching else story
        return await record(story, bus.connection)
