"""Commands by which a person answers what agents ask: confirmations, approve, deny (SEC-3)."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import orjson
import typer

from bus.cli.decide import By, Reason, person
from bus.cli.inspect import As_json
from bus.cli.operate import Servers, log_to_stderr
from bus.client import Bus
from bus.text import clean, one_line
from bus.trust.confirmation import Confirmation
from bus.trust.confirmations import Confirmations

MAX_ARGUMENTS_CHARS = 500

ConfirmationId = Annotated[str, typer.Argument(metavar="CONFIRMATION_ID", help="The id, as `confirmations` shows it.")]


def confirmations(
    workflow: Annotated[str | None, typer.Option("--workflow", help="Only of this workflow.")] = None,
    as_json: As_json = False,
    servers: Servers = None,
) -> None:
    """Show what waits for a person: who asks, what exactly may be done, since when, and until when.

    Example: bus workflow confirmations
    """
    log_to_stderr("error")
    pending = asyncio.run(_pending(servers, workflow))
    if as_json:
        print(orjson.dumps([one.to_wire() for one in pending], option=orjson.OPT_INDENT_2).decode())
    elif pending:
        print("\n".join(clean(line) for one in pending for line in _lines(one)))
    else:
        print("nothing waits for a person")


def approve(id: ConfirmationId, reason: Reason = None, by: By = None, servers: Servers = None) -> None:
    """Allow once what was asked, with exactly the arguments that are shown.

    Exit code 1 when there is no such confirmation, or it was answered before or has expired.

    Example: bus workflow approve 5f0c2d9e1a77b3c4d5e6-1 --reason "checked the numbers"
    """
    _answer(servers, id, approve=True, reason=reason, by=by)


def deny(id: ConfirmationId, reason: Reason = None, by: By = None, servers: Servers = None) -> None:
    """Forbid what was asked; who asked is told, with the reason.

    Exit code 1 when there is no such confirmation, or it was answered before or has expired.

    Example: bus workflow deny 5f0c2d9e1a77b3c4d5e6-1 --reason "wrong customer"
    """
    _answer(servers, id, approve=False, reason=reason, by=by)


def _answer(servers: str | None, id: str, *, approve: bool, reason: str | None, by: str | None) -> None:
    log_to_stderr("error")
    sys.exit(asyncio.run(_answered(servers, id, approve, reason, person(by))))


async def _answered(servers: str | None, id: str, approve: bool, reason: str | None, by: str) -> int:
    async with Bus.connect("workflow", servers=servers) as bus:
        answered = await Confirmations(bus.connection).answer(id, approve=approve, by=by, reason=reason)
    if answered is None:
        hint = "`bus workflow confirmations` shows what waits"
        print(clean(f"error: there is no confirmation {id}, or it is an older one; {hint}"), file=sys.stderr)
        return 1
    one = answered.confirmation
    if answered.is_ours:
        print(clean(f"{one.state} {one.capability or one.text}; {one.asker} goes on"))
        return 0
    who = f" by {one.answered_by}" if one.answered_by else ""
    print(clean(f"error: nothing was changed: {id} is {one.state}{who} already"), file=sys.stderr)
    return 1


async def _pending(servers: str | None, workflow_id: str | None) -> list[Confirmation]:
    async with Bus.connect("workflow", servers=servers) as bus:
        return await Confirmations(bus.connection).pending(workflow_id)


def _lines(one: Confirmation) -> list[str]:
    asked = f"{one.asker} asks" + (f" for {one.on_behalf_of}" if one.on_behalf_of else "")
    given = orjson.dumps(one.arguments).decode() if one.arguments is not None else f"SHA-256 {one.digest}"
    return [
        f"{one.id}  {asked}: {one.text}",
        f"    arguments  {one_line(given, MAX_ARGUMENTS_CHARS)}",
        f"    workflow   {one.workflow_id or '-'}" + (f"  labels {', '.join(one.labels)}" if one.labels else ""),
        f"    since {one.created_at:%Y-%m-%d %H:%M:%S}, until {one.expires_at:%Y-%m-%d %H:%M:%S} UTC",
        f"    bus workflow approve {one.id}   or   bus workflow deny {one.id}",
    ]
