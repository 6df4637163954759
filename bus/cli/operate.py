"""Commands that run things: up, run, send."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from bus.agent import Agent, Replica
from bus.broker.embedded import Embedded, until_removed
from bus.broker.tasks import end
from bus.cli import supervise
from bus.cli.numbers import refuse_large_integers
from bus.cli.usage import UsageError
from bus.client import Bus
from bus.config import Settings
from bus.delivery.outcome import Outcome
from bus.envelope import is_agent_name
from bus.errors import BusError
from bus.telemetry import logs
from bus.telemetry.redaction import Redaction
from bus.trust.rule_book import RuleBook
from bus.workflow.branches import BRANCH, newest_branch

log = logging.getLogger("bus.cli")

MAX_PORT = 65535

Servers = Annotated[str | None, typer.Option("--servers", help="NATS URLs; default: BUS_SERVERS, else embedded.")]


def up() -> None:
    """Run the embedded broker in the foreground, streams provisioned, until Ctrl-C.

    Example: bus up
    """
    log_to_stderr()
    asyncio.run(_up(Settings.load(servers="")))


async def _up(settings: Settings) -> None:
    embedded = await Embedded.join(settings.store_dir, binary=settings.nats_server)
    try:
        async with Bus.connect("bus-up", settings=settings):
            print(f"broker: {embedded.url}   files: {settings.store_dir}")
            if embedded.started:
                print("other commands find it by themselves; Ctrl-C stops it, for them too", flush=True)
            else:
                print("it was running already; Ctrl-C leaves it running", flush=True)
            await _until_stopped(settings)
    finally:
        await (embedded.stop() if embedded.started else embedded.leave())


async def _until_stopped(settings: Settings) -> None:
    """Waits for a stop signal. Raises BrokerError when the broker's files are removed meanwhile."""
    waits = [asyncio.create_task(stop_signal()), asyncio.create_task(until_removed(settings.store_dir))]
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in done:
            wait.result()
    finally:
        await end(*waits)


def run(
    agents: Annotated[list[str], typer.Argument(metavar="MODULE:AGENT|FILE.toml...", help="What to run.")],
    servers: Servers = None,
    reload: Annotated[bool, typer.Option("--reload", help="Restart when a Python file here changes.")] = False,
    workers: Annotated[int, typer.Option("--workers", min=1, max=256, help="Processes, each with all agents.")] = 1,
    grace: Annotated[float | None, typer.Option("--grace", min=0, help="Seconds to finish work on a stop.")] = None,
    rules: Annotated[
        str | None, typer.Option("--rules", metavar="FILE", help="Who may call what; default: BUS_RULES_FILE.")
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option("--log-level", help="debug, info, warning or error; default: BUS_LOG_LEVEL, else info."),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option("--log-format", help="console or json; default: BUS_LOG_FORMAT, else console.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option("--metrics-port", min=0, max=65535, help="Answer Prometheus here; 0: a free port.")
    ] = None,
    metrics_host: Annotated[str, typer.Option("--metrics-host", help="Address for --metrics-port.")] = "127.0.0.1",
) -> None:
    """Run agents until SIGTERM or Ctrl-C, then drain: finish what is in hand, hand the rest back.

    A FILE.toml describes an agent whose capabilities are HTTP services and programs; ops/connectors shows how.
    A second signal ends the grace and hands back at once; a third ends the process. With --metrics-port and several
    workers, each has its own port, counted up from the one given (all take a free one for 0); the log says which.

    Example: bus run agents.writer:writer agents.reviewer:reviewer --workers 2
    """
    settings = Settings.load(
        servers=servers, grace_s=grace, log_level=log_level, log_format=log_format, rules_file=rules
    )
    log_lines(settings)
    RuleBook.opened(settings)  # refused here, before anything starts
    loaded = [load_agent(name) for name in agents]
    if workers > 1 or reload:
        if metrics_port is not None and metrics_port + workers - 1 > MAX_PORT:
            raise UsageError(f"--metrics-port {metrics_port} and --workers {workers} go beyond port {MAX_PORT}")
        arguments = ["run", *agents, "--log-level", settings.log_level, "--log-format", settings.log_format]
        arguments += ["--servers", servers] if servers else []
        arguments += ["--grace", str(grace)] if grace is not None else []
        arguments += ["--rules", rules] if rules is not None else []
        each = [arguments + _metrics_arguments(metrics_port, metrics_host, number) for number in range(workers)]
        sys.exit(supervise.run(each, reload=reload, grace_s=settings.grace_s))
    asyncio.run(_run(loaded, settings, metrics_port=metrics_port, metrics_host=metrics_host))


def _metrics_arguments(port: int | None, host: str, worker: int) -> list[str]:
    if port is None:
        return []
    return ["--metrics-port", str(port + worker if port else 0), "--metrics-host", host]


async def _run(
    agents: list[Agent], settings: Settings, *, metrics_port: int | None = None, metrics_host: str = ""
) -> None:
    replicas: list[Replica] = []
    stopping, joined = asyncio.Event(), asyncio.Event()

    async def replicate(agent: Agent) -> None:
        async with agent.running(settings) as replica:
            replicas.append(replica)
            joined.set()
            if len(replicas) == len(agents):
                # What is loaded now stays: a full collection would walk through it for 30 ms, again and again.
                gc.collect()
                gc.freeze()
                _say_running(", ".join(one.name for one in agents), settings)
            await stopping.wait()

    def hurry() -> None:
        for replica in replicas:
            replica.hurry()

    async def watch_store() -> None:
        await joined.wait()
        try:
            await until_removed(settings.store_dir)
        except BusError:
            hurry()  # there is nobody to finish for, or to hand back to
            raise

    scraped = _scrape_endpoint(replicas, metrics_host, metrics_port)
    with scraped, on_stop_signals(stopping.set, hurry):
        try:
            # All drain at the same time, so that they share one grace.
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(replicate(agent)) for agent in agents]
                watch = None if settings.servers.strip() else group.create_task(watch_store())
                await asyncio.wait(running)
                if watch is not None:
                    watch.cancel()
        except BaseExceptionGroup as problems:
            raise problems.exceptions[0] from None


def _say_running(names: str, settings: Settings) -> None:
    if settings.log_format == "json":
        log.info("running %s", names)
    else:
        print(f"running {names}; Ctrl-C stops", file=sys.stderr, flush=True)


def _scrape_endpoint(replicas: list[Replica], host: str, port: int | None) -> contextlib.AbstractContextManager[object]:
    """The endpoint for the replicas that run by then. Raises UsageError when its library is missing."""
    if port is None:
        return contextlib.nullcontext()
    try:
        from bus.telemetry.prometheus import scrape_endpoint
    except ImportError as problem:
        raise UsageError("--metrics-port needs prometheus-client: pip install 'envelope-bus[prometheus]'") from problem
    return scrape_endpoint(lambda: [replica.metrics for replica in list(replicas)], host=host, port=port)


def load_agent(name: str) -> Agent:
    """The agent that `MODULE:AGENT` names, imported from here or the installed packages, or that a TOML file describes.

    Raises UsageError that says what is missing.
    """
    if name.endswith(".toml"):
        # Here, because no other command needs the time that it takes.
        from bus.gateway.connections import BadConnections, load_connections

        try:
            return load_connections(Path(name))
        except BadConnections as problem:
            raise UsageError(str(problem)) from problem
    module_name, separator, attribute = name.partition(":")
    if not separator or not module_name or not attribute:
        raise UsageError(f"{name!r} is neither MODULE:AGENT, such as agents.writer:writer, nor FILE.toml")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except (ImportError, SyntaxError) as problem:
        raise UsageError(f"cannot import {module_name!r}: {problem}; run it from the folder that holds it") from problem
    agent = getattr(module, attribute, None)
    if not isinstance(agent, Agent):
        found = sorted(key for key, value in vars(module).items() if isinstance(value, Agent))
        raise UsageError(f"{module_name!r} has no Agent named {attribute!r}; it has {', '.join(found) or 'none'}")
    return agent


def send(
    to: Annotated[str, typer.Argument(help="Agent name, or '*' for all.")],
    type: Annotated[str, typer.Argument(help="Message type.")],
    payload: Annotated[str, typer.Argument(metavar="JSON|@FILE|-", help="Payload: JSON, a file, or stdin.")],
    sender: Annotated[str, typer.Option("--from", help="Name to send under.")] = "cli",
    workflow: Annotated[str | None, typer.Option("--workflow", help="Workflow id.")] = None,
    phase: Annotated[str | None, typer.Option("--phase", help="Workflow phase.")] = None,
    message_id: Annotated[str | None, typer.Option("--id", help="Message id; the same id counts once.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the reply or the refusal and print it.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to wait with --wait.")] = 30.0,
    servers: Servers = None,
) -> None:
    """Send one message and print its id; with --wait print what became of it.

    Example: bus send writer draft_request @draft.json --wait
    """
    log_to_stderr("error")
    if not is_agent_name(sender):
        raise UsageError(f"--from {sender!r} is not an agent name: 1 to 64 letters, digits, _ and -")
    value = read_payload(payload)
    sys.exit(asyncio.run(_send(servers, sender, to, type, value, workflow, phase, message_id, timeout if wait else 0)))


async def _send(
    servers: str | None,
    sender: str,
    to: str,
    type: str,
    payload: Any,
    workflow_id: str | None,
    phase: str | None,
    message_id: str | None,
    wait_s: float,
) -> int:
    async with Bus.connect(sender, servers=servers) as bus:
        # What names no branch would be set aside in a workflow that was rolled back.
        branch = await newest_branch(bus.connection, workflow_id) if workflow_id is not None else 0
        extensions = {BRANCH: branch} if branch else None
        sent = await bus.send(
            to, type, payload, workflow_id=workflow_id, phase=phase, message_id=message_id, extensions=extensions
        )
        if not wait_s:
            print(sent.message_id)
            return 0
        outcome = await bus.outcome(sent, timeout_s=wait_s)
        return _print_outcome(sent.message_id, outcome, wait_s)


def _print_outcome(message_id: str, outcome: Outcome, wait_s: float) -> int:
    if outcome.dead is not None:
        dead = outcome.dead
        print(f"dead letter {dead.id}: {dead.code}: {dead.reason}; bus dead show {dead.id}", file=sys.stderr)
        return 1
    if outcome.reply is not None:
        print(outcome.reply.encode().decode())
        return 1 if outcome.reply.status == "error" else 0
    if outcome.is_handled:
        print(f"{message_id} was handled; no reply")
        return 0
    print(f"{message_id} has no answer after {wait_s:.0f} s; is an agent of that name running?", file=sys.stderr)
    return 1


def read_payload(argument: str) -> Any:
    """The JSON value of `JSON`, `@FILE` or `-`. Raises UsageError that says where it is wrong."""
    if argument == "-":
        where, data = "standard input", sys.stdin.buffer.read()
    elif argument.startswith("@"):
        where = argument[1:]
        try:
            data = Path(where).read_bytes()
        except OSError as problem:
            raise UsageError(f"cannot read {where}: {problem.strerror}") from problem
    else:
        where, data = "the payload", argument.encode()
    refuse_large_integers(data, where)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as problem:
        raise UsageError(f"{where} is not JSON: {problem}") from problem


async def stop_signal() -> None:
    """Waits for SIGTERM or SIGINT. A second one has its ordinary effect."""
    stopped = asyncio.Event()
    with on_stop_signals(stopped.set):
        await stopped.wait()


@contextlib.contextmanager
def on_stop_signals(*effects: Callable[[], None]) -> Iterator[None]:
    """Gives the first SIGTERM or SIGINT the first effect, the second the second; then they have their ordinary one."""
    loop, left = asyncio.get_running_loop(), list(effects)
    signals = (signal.SIGTERM, signal.SIGINT)

    def restore() -> None:
        for number in signals:
            loop.remove_signal_handler(number)

    def stop() -> None:
        left.pop(0)()
        if not left:
            restore()

    for number in signals:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        restore()


def log_to_stderr(level: str | None = None) -> None:
    """Log lines on standard error from this level on (default: the setting), in the form of the settings."""
    log_lines(Settings.load(log_level=level))


def log_lines(settings: Settings) -> None:
    """Log lines on standard error, as the settings ask for."""
    redaction = Redaction(name.strip() for name in settings.log_redact.split(","))
    logs.configure(level=settings.log_level, as_json=settings.log_format == "json", redaction=redaction)
