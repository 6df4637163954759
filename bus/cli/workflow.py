"""Commands for workflows: ls, show, rollback; cancel, pause and resume are in `decide.py`, answers in `confirm.py`."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from bus.broker.connection import Connection
from bus.cli.confirm import approve, confirmations, deny
from bus.cli.decide import Id, cancel, pause, resume
from bus.cli.inspect import As_json
from bus.cli.operate import Servers, log_to_stderr
from bus.cli.overview import counted, listing_lines, overview_json, overview_lines, record_json
from bus.client import Bus
from bus.text import clean
from bus.workflow.listing import NEWEST, list_workflows, matching
from bus.workflow.overview import overview
from bus.workflow.rollback import Rollbacks

workflow_app = typer.Typer(
    help="Look at workflows, stop them, and roll them back.", no_args_is_help=True, rich_markup_mode=None
)

for decision in (cancel, pause, resume, approve, deny, confirmations):
    workflow_app.command(decision.__name__)(decision)


@workflow_app.command("ls")
def ls(
    status: Annotated[
        str | None, typer.Option("--status", help="Only running, paused, success, error, or cancelled.")
    ] = None,
    newest: Annotated[int, typer.Option("--newest", min=1, max=10_000, help="How many of each status.")] = NEWEST,
    as_json: As_json = False,
    servers: Servers = None,
) -> None:
    """List workflows that have a record: those that run first, then the newest that have ended.

    Example: bus workflow ls --status error
    """
    log_to_stderr("error")
    asyncio.run(_ls(servers, status, newest, as_json))


async def _ls(servers: str | None, status: str | None, newest: int, as_json: bool) -> None:
    async with Bus.connect("workflow", servers=servers) as bus:
        listing = await list_workflows(bus.connection, status=status, newest=newest)
    if as_json:
        _print_json({"counts": listing.counts, "workflows": [record_json(one) for one in listing.records]})
        return
    for line in listing_lines(listing):
        print(clean(line))


@workflow_app.command("show")
def show(workflow: Id, as_json: As_json = False, servers: Servers = None) -> None:
    """Show how a workflow stands: phases, slots, who waits for what, checkpoints, messages, the last changes.

    Exit code 1 when there is no record of it; `bus trace` needs none.

    Example: bus workflow show 0193a1b2-c3d4-7000-8000-0c1d2e3f4a5b
    """
    log_to_stderr("error")
    sys.exit(asyncio.run(_show(servers, workflow, as_json)))


async def _show(servers: str | None, beginning: str, as_json: bool) -> int:
    async with Bus.connect("workflow", servers=servers) as bus:
        workflow_id = await _found(bus.connection, beginning)
        found = None if workflow_id is None else await overview(bus.connection, workflow_id)
    if found is None:
        return 1
    if as_json:
        _print_json(overview_json(found))
        return 0
    console = Console()
    for line in overview_lines(found):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    return 0


@workflow_app.command("rollback")
def rollback(
    workflow: Id,
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT|PHASE", help="What `bus workflow show` lists.")],
    as_json: As_json = False,
    servers: Servers = None,
) -> None:
    """Put a workflow back to a checkpoint, or to the end of a phase, and let it run from there.

    Its documents are again what they were, everything in flight since is cancelled, results that come late are set
    aside, and the messages that were in flight then are sent again. When that cannot be done it says why, changes
    nothing, and ends with 1. Repeat it when it was interrupted: that finishes it.

    Example: bus workflow rollback 0193a1b2 plan
    """
    log_to_stderr("error")
    sys.exit(asyncio.run(_rollback(servers, workflow, checkpoint, as_json)))


async def _rollback(servers: str | None, beginning: str, checkpoint: str, as_json: bool) -> int:
    async with Bus.connect("workflow", servers=servers) as bus:
        workflow_id = await _found(bus.connection, beginning)
        if workflow_id is None:
            return 1
        done = await Rollbacks(bus.connection, workflow_id, writer="bus workflow rollback").to(checkpoint)
    if as_json:
        _print_json(
            {
                "workflow_id": done.workflow_id,
                "checkpoint": done.checkpoint,
                "branch": done.branch,
                "documents": done.documents,
                "resent": done.resent,
                "resumed": done.resumed,
            }
        )
    else:
        finished = ", which an earlier try had begun" if done.resumed else ""
        print(
            clean(
                f"rolled {done.workflow_id} back to {done.checkpoint}{finished}: branch {done.branch}, "
                f"{counted(done.documents, 'document')} restored, {counted(done.resent, 'message')} sent again"
            )
        )
    return 0


async def _found(connection: Connection, beginning: str) -> str | None:
    """The only workflow whose id begins so; None, told on standard error, when there is none or several."""
    ids = await matching(connection, beginning)
    if len(ids) == 1:
        return ids[0]
    if ids:
        problem = f"several workflows begin with {beginning}, such as {', '.join(ids[:3])}; write more of the id"
    else:
        problem = f"there is no record of the workflow {beginning}; `bus workflow ls` lists those that have one"
    print(f"error: {clean(problem)}", file=sys.stderr)
    return None


def _print_json(value: Any) -> None:
    print(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
