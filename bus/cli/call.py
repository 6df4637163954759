"""Commands about capabilities: call, registry ls, show, test."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bus.calls.draft import CallDraft
from bus.calls.index import Offer
from bus.calls.records import Told
from bus.cli.inspect import As_json
from bus.cli.operate import Servers, log_to_stderr, read_payload
from bus.cli.usage import UsageError
from bus.client import Bus
from bus.config import Settings
from bus.contracts.result import Result, raised
from bus.envelope import is_agent_name
from bus.errors import BusError
from bus.text import clean

COMPLETION_S = 1.0
FOUND_NOBODY = 1

registry_app = typer.Typer(
    help="Agents, what they can do, and test calls.", no_args_is_help=True, rich_markup_mode=None
)


def _complete(incomplete: str) -> list[str]:
    """Names of capabilities that begin with what was typed; none when no broker can be reached at once."""

    async def names() -> list[str]:
        settings = Settings.load(connect_timeout_s=COMPLETION_S)
        if not settings.servers and not (settings.store_dir / "broker.json").exists():
            return []
        async with Bus.connect("cli", settings=settings) as bus:
            return sorted(
                {offer.card.name for offer in await bus.capabilities.find(incomplete, timeout_s=COMPLETION_S)}
            )

    with contextlib.suppress(BusError, ValueError, OSError):
        return asyncio.run(names())
    return []


As = Annotated[str, typer.Option("--from", help="As this agent or client may see it.")]
Name = Annotated[str, typer.Argument(metavar="CAPABILITY", help="Its name.", autocompletion=_complete)]


def call(
    capability: Name,
    arguments: Annotated[str, typer.Argument(metavar="JSON|@FILE|-", help="Arguments: JSON, a file, or stdin.")] = "{}",
    sender: Annotated[str, typer.Option("--from", help="Name to call under.")] = "cli",
    agent: Annotated[str | None, typer.Option("--agent", help="Who shall answer.")] = None,
    version: Annotated[str | None, typer.Option("--version", help="What it must be compatible with: 1 or 1.2.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Idempotency key: the same key, the same result.")] = None,
    timeout: Annotated[float | None, typer.Option("--timeout", min=0.01, help="Seconds; default: the card's.")] = None,
    notify: Annotated[bool, typer.Option("--notify", help="Do not wait for the result; print the call's id.")] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Submit a task and print its id; bus task result ID waits for it.")
    ] = False,
    stream: Annotated[bool, typer.Option("--stream", help="One JSON line a chunk, as it comes.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The whole result: ok, data, error, meta. Of a stream: every event.")
    ] = False,
    servers: Servers = None,
) -> None:
    """Call a capability and print its data; an error goes to standard error and ends with 1.

    Of a capability that takes long it prints the id of a task, as with --no-wait.

    Example: bus call calculator.add '{"a": 1, "b": 2}'
    Example: bus call echo.spell '{"text": "hi"}' --stream
    """
    log_to_stderr("error")
    if notify and no_wait:
        raise UsageError("--notify asks for nothing and --no-wait for a task; give one of them")
    _checked(sender)
    draft = CallDraft(
        capability,
        read_payload(arguments),
        timeout_s=timeout,
        agent=agent,
        version=version,
        idempotency_key=key,
    )
    if stream and (key or notify or no_wait):
        raise UsageError(
            "--stream excludes --key, --notify and --no-wait: a stream is not kept under a key, and somebody reads it"
        )
    if stream:
        sys.exit(asyncio.run(_stream(servers, sender, draft, as_json)))
    sys.exit(asyncio.run(_call(servers, sender, draft, notify, no_wait, as_json)))


def _checked(sender: str) -> str:
    if not is_agent_name(sender):
        raise UsageError(f"--from {sender!r} is not an agent name: 1 to 64 letters, digits, _ and -")
    return sender


async def _call(servers: str | None, sender: str, draft: CallDraft, notify: bool, no_wait: bool, as_json: bool) -> int:
    async with Bus.connect(sender, servers=servers) as bus:
        if notify:
            print(await bus.notify(draft.capability, draft.arguments, agent=draft.agent))
            return 0
        if no_wait:
            options = {name: value for name, value in draft._asdict().items() if value is not None}
            task = await bus.submit(options.pop("capability"), options.pop("arguments"), **options)
            print(orjson.dumps({"task_id": task.id}).decode() if as_json else task.id)
            return 0
        (result,) = (await bus.call_many([draft])).values()
        return print_result(result, as_json)


async def _stream(servers: str | None, sender: str, draft: CallDraft, as_json: bool) -> int:
    async with Bus.connect(sender, servers=servers) as bus:
        stream = bus.stream(
            draft.capability, draft.arguments, timeout_s=draft.timeout_s, agent=draft.agent, version=draft.version
        )
        try:
            async with contextlib.aclosing(stream.records()) as records:
                async for record in records:
                    line = {"type": record.told, **record.payload} if as_json else record.payload.get("data")
                    if as_json or record.told is Told.CHUNK:
                        print(orjson.dumps(line).decode(), flush=True)
        except BusError as problem:
            return print_result(Result.of_error(problem.info), as_json=False)
    return 0


def print_result(result: Result, as_json: bool) -> int:
    """Prints a result, or the error of a failed one, and returns the exit code."""
    if as_json:
        print(orjson.dumps(result.to_payload()).decode())
    elif result.is_pending:
        print(clean(str(result.meta.get("task_id"))))
    elif result.error is None:
        print(orjson.dumps(result.data, option=orjson.OPT_INDENT_2).decode())
    if result.error is not None:
        if result.error.code == "broker.unavailable":
            raise raised(result.error)
        if not as_json:
            print(clean(f"error: {result.error.code}: {result.error.message}"), file=sys.stderr)
        return 1
    return 0


@registry_app.command("ls")
def ls(
    prefix: Annotated[str, typer.Argument(help="Only capabilities whose name begins with it.")] = "",
    agent: Annotated[str | None, typer.Option("--agent", help="Only of this agent.")] = None,
    sender: As = "cli",
    as_json: As_json = False,
    servers: Servers = None,
) -> None:
    """List what can be called: capability, version, agent, live replicas, description.

    With rules, what --from may not call is not there.

    Example: bus registry ls calculator.
    """
    log_to_stderr("warning")
    offers = asyncio.run(_offers(servers, _checked(sender), prefix, agent))
    if as_json:
        print(orjson.dumps([_offer_json(offer) for offer in offers]).decode())
        return
    table = Table("CAPABILITY", "VERSION", "AGENT", "REPLICAS", "DESCRIPTION", box=None, pad_edge=False)
    for offer in offers:
        first = offer.card.description.partition("\n")[0]
        table.add_row(
            *(escape(clean(text)) for text in (offer.card.name, offer.card.version, offer.agent)),
            str(len(offer.instances)),
            escape(clean(first)),
        )
    if offers:
        Console(soft_wrap=True).print(table)
    else:
        print("nothing is registered", file=sys.stderr)


async def _offers(servers: str | None, sender: str, prefix: str, agent: str | None) -> list[Offer]:
    async with Bus.connect(sender, servers=servers) as bus:
        return await bus.capabilities.find(prefix, agent=agent)


def _offer_json(offer: Offer) -> dict[str, Any]:
    return {"agent": offer.agent, "replicas": list(offer.instances), "card": offer.card.to_wire()}


@registry_app.command("show")
def show(
    agent: Annotated[str, typer.Argument(help="Agent name.")],
    sender: As = "cli",
    servers: Servers = None,
) -> None:
    """Show one agent as JSON: its replicas and the whole of its cards.

    Example: bus registry show alice
    """
    log_to_stderr("warning")
    sys.exit(asyncio.run(_show(servers, _checked(sender), agent)))


async def _show(servers: str | None, sender: str, agent: str) -> int:
    async with Bus.connect(sender, servers=servers) as bus:
        for found in await bus.capabilities.agents():
            if found.agent == agent:
                print(
                    orjson.dumps(
                        {
                            "agent": agent,
                            "replicas": [orjson.loads(lease.encode()) for lease in found.leases],
                            "announcements": [orjson.loads(one.encode()[1]) for one in found.announcements],
                        },
                        option=orjson.OPT_INDENT_2,
                    ).decode()
                )
                return 0
    print(f"no agent {agent!r} is registered; bus registry ls shows who is", file=sys.stderr)
    return FOUND_NOBODY


@registry_app.command("test")
def try_examples(
    capability: Name,
    agent: Annotated[str | None, typer.Option("--agent", help="Only this agent.")] = None,
    timeout: Annotated[float | None, typer.Option("--timeout", min=0.01, help="Seconds; default: the card's.")] = None,
    sender: As = "cli",
    servers: Servers = None,
) -> None:
    """Run the example of every card of a capability as a test call.

    Example: bus registry test calculator.add
    """
    log_to_stderr("error")
    sys.exit(asyncio.run(_test(servers, _checked(sender), capability, agent, timeout)))


async def _test(servers: str | None, sender: str, capability: str, agent: str | None, timeout_s: float | None) -> int:
    async with Bus.connect(sender, servers=servers) as bus:
        offers = [one for one in await bus.capabilities.find(capability, agent=agent) if one.card.name == capability]
        failed = 0 if offers else 1
        if not offers:
            print(f"nobody offers {capability!r}; bus registry ls shows what there is", file=sys.stderr)
        for offer in offers:
            what = clean(f"{capability} {offer.card.version} of {offer.agent}")
            if offer.card.example is None:
                print(f"-     {what}: its card has no example")
                continue
            draft = CallDraft(
                capability, offer.card.example, agent=offer.agent, version=offer.card.version.partition("-")[0],
                timeout_s=timeout_s,
            )  # fmt: skip
            (result,) = (await bus.call_many([draft])).values()
            if result.error is None:
                print(f"good  {what}: {result.meta.get('elapsed_ms')} ms")
            else:
                failed = 1
                print(clean(f"bad   {what}: {result.error.code}: {result.error.message}"))
        return failed
