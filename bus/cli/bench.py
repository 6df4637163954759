"""The command that measures this machine."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from typing import Annotated

import orjson
import typer

from bus.bench import Measurement, measure
from bus.cli.operate import log_to_stderr
from bus.cli.render import table
from bus.cli.usage import UsageError
from bus.config import Settings


def bench(
    messages: Annotated[int, typer.Option("--messages", min=1, help="How many messages or calls each way.")] = 10_000,
    body_bytes: Annotated[int, typer.Option("--bytes", min=0, max=200_000, help="Bytes of each body.")] = 350,
    loop: Annotated[str, typer.Option("--loop", help="asyncio, or uvloop (extra `fast`).")] = "asyncio",
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Measure this machine: how fast messages are handled and calls answered, beside the bare broker, on a private one.

    Compare the lines of one run; a busy machine slows all of them.

    Example: bus bench --messages 20000 --loop uvloop
    """
    log_to_stderr("error")
    logging.getLogger("bus").setLevel(logging.CRITICAL)
    with asyncio.Runner(loop_factory=_factory(loop)) as runner:
        found = runner.run(measure(messages=messages, body_bytes=body_bytes, nats_server=Settings.load().nats_server))
    if as_json:
        rows = [dataclasses.asdict(one) for one in found]
        print(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
        return
    columns = ("", "messages", "a second", "CPU us", "p50 ms", "p99 ms")
    print("\n".join(table(columns, [_row(one) for one in found])))


def _factory(name: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if name == "asyncio":
        return None
    if name != "uvloop":
        raise UsageError(f"--loop {name}: there are asyncio and uvloop")
    try:
        import uvloop
    except ImportError:
        raise UsageError("uvloop is not installed; pip install 'envelope-bus[fast]'") from None
    return uvloop.new_event_loop


def _row(one: Measurement) -> tuple[str, ...]:
    rest = [f"{value:.2f}" if value is not None else "" for value in (one.p50_ms, one.p99_ms)]
    return one.name, str(one.messages), f"{one.rate_per_s:.0f}", f"{one.cpu_us:.0f}" if one.cpu_us else "", *rest
