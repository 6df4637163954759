"""Commands about tasks: show, result, cancel, ls."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from bus.calls.tasks.record import TaskRecord, TaskState
from bus.cli.call import print_result
from bus.cli.inspect import As_json
from bus.cli.operate import Servers, log_to_stderr
from bus.cli.usage import UsageError
from bus.client import Bus
from bus.contracts.result import Result
from bus.text import clean

task_app = typer.Typer(help="Tasks: calls that take long.", no_args_is_help=True, rich_markup_mode=None)

Id = Annotated[str, typer.Argument(metavar="ID", help="The task, as `bus call --no-wait` printed it.")]


@task_app.command("show")
def show(id: Id, servers: Servers = None) -> None:
    """Show the record of a task as JSON: state, attempts, who asked, who runs it, and how it ended.

    Example: bus task show 01a22f07-b14c-740b-ac64-0f00bede61ba
    """
    log_to_stderr("error")
    record = asyncio.run(_status(servers, id))
    print(orjson.dumps(record.to_wire(), option=orjson.OPT_INDENT_2).decode())


async def _status(servers: str | None, id: str) -> TaskRecord:
    async with Bus.connect("cli", servers=servers) as bus:
        return await bus.task(id).status()


@task_app.command("result")
def result(
    id: Id,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0.01, help="Seconds to wait; default: until it ends.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The whole result: ok, data, error, meta.")] = False,
    servers: Servers = None,
) -> None:
    """Wait for the end of a task and print its data; 1 for one that failed, was cancelled, or has not ended in time.

    Example: bus task result 01a22f07-b14c-740b-ac64-0f00bede61ba --timeout 60
    """
    log_to_stderr("error")
    sys.exit(print_result(asyncio.run(_outcome(servers, id, timeout)), as_json))


async def _outcome(servers: str | None, id: str, timeout_s: float | None) -> Result:
    async with Bus.connect("cli", servers=servers) as bus:
        return await bus.task(id).outcome(timeout_s=timeout_s)


@task_app.command("cancel")
def cancel(id: Id, as_json: As_json = False, servers: Servers = None) -> None:
    """Cancel a task and what was submitted in its course; 1 when it had succeeded or failed before.

    Example: bus task cancel 01a22f07-b14c-740b-ac64-0f00bede61ba
    """
    log_to_stderr("error")
    record = asyncio.run(_cancel(servers, id))
    if as_json:
        print(orjson.dumps(record.to_wire()).decode())
    elif record.state is TaskState.CANCELLED:
        print(f"{record.id} is cancelled")
    else:
        print(clean(f"{record.id} had {record.state} before; nothing changed"), file=sys.stderr)
    sys.exit(0 if record.state is TaskState.CANCELLED else 1)


async def _cancel(servers: str | None, id: str) -> TaskRecord:
    async with Bus.connect("cli", servers=servers) as bus:
        return await bus.task(id).cancel()


@task_app.command("ls")
def ls(
    agent: Annotated[str | None, typer.Option("--agent", help="Only of this agent.")] = None,
    state: Annotated[
        str | None, typer.Option("--state", help="Only in this state: queued, running, succeeded, failed, cancelled.")
    ] = None,
    as_json: As_json = False,
    servers: Servers = None,
) -> None:
    """List tasks, the oldest first: id, state, agent, capability, attempts, age. Ended ones are kept for a day.

    Example: bus task ls --state running
    """
    log_to_stderr("warning")
    if state is not None and state not in list(TaskState):
        raise UsageError(f"--state {state!r} is none of {', '.join(TaskState)}")
    found = [
        record
        for record in asyncio.run(_tasks(servers))
        if agent in (None, record.agent) and state in (None, record.state)
    ]
    if as_json:
        print(orjson.dumps([record.to_wire() for record in found]).decode())
        return
    if not found:
        print("there are no such tasks", file=sys.stderr)
        return
    # Ids are for copying, so they are never cut.
    id_column = Column("ID", no_wrap=True, min_width=max(len(clean(record.id)) for record in found))
    table = Table(id_column, "STATE", "AGENT", "CAPABILITY", "ATTEMPTS", "AGE", box=None, pad_edge=False)
    for record in found:
        texts = (record.id, record.state, record.agent, record.capability)
        table.add_row(*(escape(clean(text)) for text in texts), str(record.attempts), _age(record))
    Console(soft_wrap=True).print(table)


async def _tasks(servers: str | None) -> list[TaskRecord]:
    async with Bus.connect("cli", servers=servers) as bus:
        return await bus.tasks()


def _age(record: TaskRecord) -> str:
    seconds = max(0.0, (datetime.now(UTC) - record.submitted_at).total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
