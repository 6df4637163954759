"""Commands by which a person decides about a workflow: cancel, pause, resume."""

from __future__ import annotations

import asyncio
import getpass
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import orjson
import typer

from bus.broker.connection import Connection
from bus.cli.inspect import As_json
from bus.cli.operate import Servers, log_to_stderr
from bus.cli.overview import record_json
from bus.client import Bus
from bus.text import clean
from bus.workflow.decision import Verb
from bus.workflow.decisions import Answer, Decided, Decisions
from bus.workflow.family import Family, FamilyReader
from bus.workflow.listing import matching

MAX_SHOWN = 3

Id = Annotated[str, typer.Argument(metavar="WORKFLOW_ID", help="The id, or the beginning of it.")]
Message = Annotated[
    str | None, typer.Option("--message", help="Only this message and all that it caused; the beginning is enough.")
]
Reason = Annotated[str | None, typer.Option("--reason", help="Why, for those who look at it later.")]
By = Annotated[str | None, typer.Option("--by", help="Who decides; by default who is logged in here.")]
Decide = Callable[[Decisions, str | None], Awaitable[Decided]]


def cancel(
    workflow: Id,
    message: Message = None,
    reason: Reason = None,
    by: By = None,
    as_json: As_json = False,
    servers: Servers = None,
) -> None:
    """Cancel a workflow for good, or one message and everything that it caused.

    What waits or is scheduled is set aside when it comes, with a trace in `bus trace`; what runs is cancelled, with its
    calls and tasks, and cannot send anything more. Exit code 1 when the workflow has ended or is unknown.

    Example: bus workflow cancel 0193a1b2 --reason "wrong goal"
    """
    _run(servers, workflow, message, by, as_json, lambda one, below: one.cancel(below, reason=reason))


def pause(
    workflow: Id,
    message: Message = None,
    reason: Reason = None,
    by: By = None,
    as_json: As_json = False,
    servers: Servers = None,
) -> None:
    """Let nothing of a workflow begin, or nothing below one message, until it is resumed.

    What runs comes to its end, and what it sends waits too. Nothing is lost, for hours or days, whatever restarts.
    Exit code 1 when the workflow has ended or is unknown.

    Example: bus workflow pause 0193a1b2 --reason "the price list is wrong"
    """
    _run(servers, workflow, message, by, as_json, lambda one, below: one.pause(below, reason=reason))


def resume(
    workflow: Id, message: Message = None, by: By = None, as_json: As_json = False, servers: Servers = None
) -> None:
    """Let a paused workflow go on where it was, or what was paused below one message.

    Exit code 1 when it is not paused, or unknown.

    Example: bus workflow resume 0193a1b2
    """
    _run(servers, workflow, message, by, as_json, lambda one, below: one.resume(below))


def person(by: str | None) -> str:
    """Who decides."""
    if by:
        return by
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"


def _run(
    servers: str | None, workflow: str, message: str | None, by: str | None, as_json: bool, decide: Decide
) -> None:
    log_to_stderr("error")
    sys.exit(asyncio.run(_decide(servers, workflow, message, person(by), as_json, decide)))


async def _decide(
    servers: str | None, beginning: str, message: str | None, by: str, as_json: bool, decide: Decide
) -> int:
    async with Bus.connect("workflow", servers=servers) as bus:
        workflow_id = await found_workflow(bus, beginning)
        if workflow_id is None:
            return 1
        below = None if message is None else await _found_message(bus.connection, workflow_id, message)
        if message is not None and below is None:
            return 1
        decided = await decide(Decisions(bus.connection, workflow_id, writer=by), below)
    if as_json:
        print(orjson.dumps(_json(workflow_id, decided), option=orjson.OPT_INDENT_2).decode())
    else:
        print(clean(_told(workflow_id, decided)))
    return 0 if decided.answer is Answer.DONE else 1


async def found_workflow(bus: Bus, beginning: str) -> str | None:
    """The only workflow whose id begins so, with a record or without; else None, told on standard error."""
    ids = await matching(bus.connection, beginning)
    if not ids and beginning:
        ids = [one for one in await bus.workflows() if one.startswith(beginning)]
    return _only(ids, beginning, "workflow", "`bus workflow ls` lists those that have a record")


async def _found_message(connection: Connection, workflow_id: str, beginning: str) -> str | None:
    family = Family()
    await FamilyReader(connection, workflow_id, family).read()
    if beginning in family:
        return beginning
    ids = [one for one in family.ids if beginning and one.startswith(beginning)]
    return _only(ids, beginning, "message", f"`bus trace {workflow_id} --json` lists them")


def _only(ids: list[str], beginning: str, what: str, hint: str) -> str | None:
    if len(ids) == 1:
        return ids[0]
    if ids:
        problem = f"several {what}s begin with {beginning}, such as {', '.join(ids[:MAX_SHOWN])}; write more of the id"
    else:
        problem = f"there is no {what} {beginning}; {hint}"
    print(f"error: {clean(problem)}", file=sys.stderr)
    return None


def _told(workflow_id: str, decided: Decided) -> str:
    decision, record = decided.decision, decided.record
    if decided.answer is Answer.ENDED and record is not None:
        ended = f" at {record.ended_at:%Y-%m-%d %H:%M:%S}" if record.ended_at else ""
        return f"nothing was changed: workflow {workflow_id} has ended as {record.status}{ended}"
    if decision is None:
        return f"nothing was changed: workflow {workflow_id} is not paused"
    if decided.answer is Answer.NOTHING:
        return f"nothing was changed: it was resumed by {decision.by} at {decision.at:%Y-%m-%d %H:%M:%S}"
    if decided.answer is Answer.ALREADY:
        return f"nothing was changed: it is {decision.told} since {decision.at:%Y-%m-%d %H:%M:%S} already"
    what = f"workflow {workflow_id}" if decision.message_id is None else f"what is below {decision.message_id}"
    if decision.verb is Verb.CANCEL:
        return f"cancelled {what}; what still waits is set aside as it comes"
    return f"paused {what}; what runs comes to its end" if decision.is_active else f"resumed {what}"


def _json(workflow_id: str, decided: Decided) -> dict[str, Any]:
    return {
        "workflow_id": workflow_id,
        "answer": decided.answer,
        "decision": None if decided.decision is None else decided.decision.to_wire(),
        "record": None if decided.record is None else record_json(decided.record),
    }
