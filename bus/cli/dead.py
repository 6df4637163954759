"""Commands for dead letters: ls, show, edit, retry, drop."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

import orjson
import typer

from bus.cli.editor import edited, read_json, write_json
from bus.cli.inspect import As_json
from bus.cli.numbers import refuse_large_integers
from bus.cli.operate import Servers, log_to_stderr
from bus.cli.render import dead_letter_json, dead_letter_text, table
from bus.cli.usage import UsageError
from bus.client import Bus
from bus.delivery.assignment import Assignment
from bus.delivery.letter import DeadLetter, Grouping, NoSuchDeadLetter
from bus.delivery.mending import RETRIES_PER_S, Mending, NotRetried
from bus.text import clean

dead_app = typer.Typer(
    help="Look at messages that could not be handled, and mend them.", no_args_is_help=True, rich_markup_mode=None
)

PROGRESS_S = 1.0

Id = Annotated[int, typer.Argument(min=1, help="The id that `bus dead ls` shows.")]
Ids = Annotated[list[int] | None, typer.Argument(min=1, metavar="ID...", help="The ids that `bus dead ls` shows.")]
All = Annotated[bool, typer.Option("--all", help="All that the filters let through.")]
By_agent = Annotated[str | None, typer.Option("--agent", help="Only of this agent.")]
By_code = Annotated[str | None, typer.Option("--code", help="Only with this error code, or an alias of it.")]
By_type = Annotated[str | None, typer.Option("--type", help="Only of this message type.")]
Filters = tuple[str | None, str | None, str | None]

NO_FILTERS: Filters = (None, None, None)
COLUMNS = ("id", "failed", "agent", "code", "attempts", "type", "reason")


@dead_app.command("ls")
def ls(
    agent: By_agent = None,
    code: By_code = None,
    type: By_type = None,
    group: Annotated[bool, typer.Option("--group", help="Counts by agent, code and type instead.")] = False,
    as_json: As_json = False,
    servers: Servers = None,
) -> None:
    """List dead letters, oldest first, or count them.

    Example: bus dead ls --agent writer --group
    """
    log_to_stderr("error")
    asyncio.run(_ls(servers, (agent, code, type), group, as_json))


async def _ls(servers: str | None, filters: Filters, group: bool, as_json: bool) -> None:
    grouping, rows, objects = Grouping(), [], []
    async with _dead_letters(servers) as dead_letters:
        async for dead in _matching(dead_letters, filters):
            if group:
                grouping.add(dead)
            elif as_json:
                objects.append(dead_letter_json(dead, with_data=False))
            else:
                rows.append(_row(dead))
    groups = grouping.groups()
    if as_json:
        _print_json(groups if group else objects)
    elif groups:
        counts = [(str(one.count), str(one.newest_id), one.agent, one.code, one.type or "?") for one in groups]
        _print_table(("count", "newest", "agent", "code", "type"), counts)
    elif rows:
        _print_table(COLUMNS, rows)
    else:
        print("no dead letters")


@dead_app.command("show")
def show(
    id: Id,
    original: Annotated[bool, typer.Option("--original", help="Only the bytes, as they came before any edit.")] = False,
    as_json: As_json = False,
    servers: Servers = None,
) -> None:
    """Show one dead letter: why, from where, its headers and its bytes.

    Example: bus dead show 3
    """
    log_to_stderr("error")
    sys.exit(asyncio.run(_show(servers, id, original, as_json)))


async def _show(servers: str | None, id: int, original: bool, as_json: bool) -> int:
    async with _dead_letters(servers) as dead_letters:
        (dead,) = [one async for one in _chosen(dead_letters, [id], NO_FILTERS)]
        if original:
            data = await dead_letters.original(dead)
            if data is None:
                return _no(f"the original bytes of dead letter {id} have been forgotten")
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        elif as_json:
            _print_json(dead_letter_json(dead, with_data=True))
        else:
            print(dead_letter_text(dead))
    return 0


@dead_app.command("edit")
def edit(
    id: Id,
    set: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=JSON", help="Change one place; may be repeated.")
    ] = None,
    as_json: As_json = False,
    servers: Servers = None,
) -> None:
    """Change the message of a dead letter, in $EDITOR or with --set; the letter gets a new id.

    The bytes as they came stay findable: bus dead show ID --original.

    Example: bus dead edit 3 --set payload.x=1 --set 'payload.items.0.name="ink"'
    """
    log_to_stderr("error")
    assignments = [Assignment.parse(text) for text in set or []]
    for text, assignment in zip(set or [], assignments, strict=True):
        refuse_large_integers(write_json(assignment.value), f"--set {text.partition('=')[0]}")
    dead = asyncio.run(_get(servers, id))
    if not dead.is_whole:
        sys.exit(_no(f"the bytes of dead letter {id} were kept as an object, which has been forgotten"))
    if assignments:
        document = read_json(dead.data)
        if document is None:
            raise UsageError(f"dead letter {id} is not JSON, so --set finds no place in it; edit it in $EDITOR")
        changed = document[0]
        for assignment in assignments:
            changed = assignment.apply(changed)
        asyncio.run(_replace(servers, dead, write_json(changed), as_json))
        return
    with edited(dead.data, name=f"dead-letter-{id}") as data:
        asyncio.run(_replace(servers, dead, data, as_json))


async def _get(servers: str | None, id: int) -> DeadLetter:
    async with _dead_letters(servers) as dead_letters:
        (dead,) = [one async for one in _chosen(dead_letters, [id], NO_FILTERS)]
        return dead


async def _replace(servers: str | None, dead: DeadLetter, data: bytes, as_json: bool) -> None:
    before = read_json(dead.data)
    if data == dead.data or (before is not None and write_json(before[0]) == data):
        _say(as_json, {"id": dead.id, "edited_from": None}, f"nothing changed; dead letter {dead.id} stays as it was")
        return
    async with _dead_letters(servers) as dead_letters:
        new_id = await dead_letters.edit(dead.id, data)
    text = f"dead letter {dead.id} is now {new_id}; bus dead retry {new_id} sends it again"
    _say(as_json, {"id": new_id, "edited_from": dead.id}, text)


@dead_app.command("retry")
def retry(
    ids: Ids = None,
    every: All = False,
    agent: By_agent = None,
    code: By_code = None,
    type: By_type = None,
    rate: Annotated[float, typer.Option("--rate", min=0.01, max=10_000, help="At most so many a second.")] = (
        RETRIES_PER_S
    ),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be sent again.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, the last one sums up.")] = False,
    servers: Servers = None,
) -> None:
    """Send dead letters to their agent again, each as it is, once; what was sent leaves the list.

    It may be stopped at any point and begun again. What fails again becomes a new dead letter.

    Example: bus dead retry --all --agent writer --code payload.invalid --rate 20
    """
    log_to_stderr("error")
    filters = _checked(ids, every, (agent, code, type))
    sys.exit(asyncio.run(_retry(servers, ids, filters, rate, dry_run, as_json)))


async def _retry(
    servers: str | None, ids: list[int] | None, filters: Filters, rate: float, dry_run: bool, as_json: bool
) -> int:
    async with _dead_letters(servers) as dead_letters:
        if dry_run:
            return await _foresee(_chosen(dead_letters, ids, filters), as_json)
        wanted = [dead.id async for dead in _chosen(dead_letters, ids, filters)]
        sent = stay = 0
        shown_at = time.monotonic()
        try:
            async for one in dead_letters.retry_each(wanted, per_second=rate):
                if isinstance(one, NotRetried):
                    stay += 1
                    _no(one.problem.message)
                    if as_json:
                        _print_line({"id": one.id, "problem": one.problem.to_wire()})
                else:
                    sent += 1
                    if as_json:
                        _print_line(
                            {"id": one.id, "message_id": one.message_id, "subject": one.subject, "seq": one.seq}
                        )
                if time.monotonic() - shown_at > PROGRESS_S:
                    shown_at = time.monotonic()
                    print(f"{sent} of {len(wanted)} sent again", file=sys.stderr, flush=True)
        finally:
            left = len(wanted) - sent - stay
            summary = f"{sent} sent again, {stay} cannot be" + (f", {left} not tried or gone meanwhile" if left else "")
            _say(as_json, {"retried": sent, "failed": stay, "left": left}, summary)
    return 1 if stay else 0


async def _foresee(chosen: AsyncIterator[DeadLetter], as_json: bool) -> int:
    rows = []
    async for dead in chosen:
        rows.append(_row(dead))
        if as_json:
            _print_line(dead_letter_json(dead, with_data=False))
    if rows and not as_json:
        _print_table(COLUMNS, rows)
    _say(as_json, {"would_retry": len(rows)}, f"{len(rows)} would be sent again; nothing was done")
    return 0


@dead_app.command("drop")
def drop(
    ids: Ids = None,
    every: All = False,
    agent: By_agent = None,
    code: By_code = None,
    type: By_type = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before --all.")] = False,
    as_json: As_json = False,
    servers: Servers = None,
) -> None:
    """Remove dead letters for good.

    Example: bus dead drop --all --agent writer --code protocol.malformed
    """
    log_to_stderr("error")
    filters = _checked(ids, every, (agent, code, type))
    found = asyncio.run(_ids(servers, ids, filters))
    # No connection waits while a person thinks.
    if found and every and not yes and not _confirmed(len(found)):
        sys.exit(_no("nothing was dropped; --yes drops without asking"))
    sys.exit(asyncio.run(_drop(servers, found, as_json)))


async def _ids(servers: str | None, ids: list[int] | None, filters: Filters) -> list[int]:
    async with _dead_letters(servers) as dead_letters:
        return [dead.id async for dead in _chosen(dead_letters, ids, filters)]


async def _drop(servers: str | None, found: list[int], as_json: bool) -> int:
    dropped = 0
    async with _dead_letters(servers) as dead_letters:
        for id in found:
            try:
                await dead_letters.drop(id)
                dropped += 1
            except NoSuchDeadLetter:
                continue  # somebody else was faster
    _say(as_json, {"dropped": dropped}, f"{dropped} dropped")
    return 0


def _confirmed(count: int) -> bool:
    print(f"Drop {count} dead letters for good? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _checked(ids: list[int] | None, every: bool, filters: Filters) -> Filters:
    """The filters. Raises UsageError when it is not clear which letters are meant."""
    if bool(ids) == every:
        raise UsageError("say which: one or more ids, or --all")
    if ids and any(filters):
        raise UsageError("--agent, --code and --type go with --all")
    return filters


@asynccontextmanager
async def _dead_letters(servers: str | None) -> AsyncIterator[Mending]:
    async with Bus.connect("dead", servers=servers) as bus:
        yield bus.dead_letters


def _matching(dead_letters: Mending, filters: Filters) -> AsyncIterator[DeadLetter]:
    agent, code, type = filters
    return dead_letters.list(agent=agent, code=code, type=type)


async def _chosen(dead_letters: Mending, ids: list[int] | None, filters: Filters) -> AsyncIterator[DeadLetter]:
    """The letters of the ids, else those that match. Raises NoSuchDeadLetter."""
    if not ids:
        async for dead in _matching(dead_letters, filters):
            yield dead
    for id in dict.fromkeys(ids or ()):
        found = await dead_letters.get(id)
        if found is None:
            raise NoSuchDeadLetter(id)
        yield found


def _row(dead: DeadLetter) -> tuple[str, ...]:
    failed = dead.failed_at.astimezone().strftime("%m-%d %H:%M:%S")
    return str(dead.id), failed, dead.agent, dead.code, str(dead.attempts), dead.type or "?", dead.reason


def _print_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    for line in table(header, rows):
        print(line)


def _print_json(value: Any) -> None:
    print(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def _print_line(value: dict[str, Any]) -> None:
    print(orjson.dumps(value).decode(), flush=True)


def _say(as_json: bool, value: dict[str, Any], text: str) -> None:
    if as_json:
        _print_line(value)
    else:
        print(clean(text))


def _no(reason: str) -> int:
    print(f"error: {clean(reason)}", file=sys.stderr)
    return 1
