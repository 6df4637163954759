"""What this machine does: rates, times and CPU of the bus beside the bare broker, on a private broker of its own."""

from __future__ import annotations

import asyncio
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel

from bus.agent import Agent
from bus.broker.connection import Connection
from bus.broker.store import store
from bus.broker.wire import publish_command
from bus.client import Bus
from bus.config import Settings
from bus.envelope import Envelope
from bus.testing import NatsServer

IN_FLIGHT = 64
LATENCY_MESSAGES = 500
WARM_UP = 200
WORK_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Measurement:
    """One line of the table. `cpu_us` is of this process, which plays both sides; None where it says nothing."""

    name: str
    messages: int
    rate_per_s: float
    cpu_us: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None


class _Work(BaseModel):
    number: int
    sent_ns: int
    body: str


class _Number(BaseModel):
    number: int


async def measure(*, messages: int, body_bytes: int, nats_server: str = "") -> list[Measurement]:
    """Sends `messages` of `body_bytes` each way, one way after the other; both sides in this process.

    Compare the lines of one run with each other: they share the machine's mood. Raises BrokerError when the server
    cannot be started, ValueError for a number below 1.
    """
    if messages < 1 or body_bytes < 0:
        raise ValueError("a bench needs at least one message, and a body of at least 0 bytes")
    with (
        tempfile.TemporaryDirectory(prefix="bus-bench-") as folder,
        NatsServer(Path(folder), binary=nats_server) as server,
    ):
        settings = Settings.load(
            servers=server.url, creds="", tls_ca="", tls_cert="", tls_key="", work_max_bytes=WORK_BYTES
        )
        async with Bus.connect("bench", settings=settings) as bus:
            return [
                await _bare(bus.connection, messages, body_bytes),
                *await _durable(bus, settings, messages, body_bytes),
                await _latency(bus, settings, body_bytes),
                await _bare_requests(bus.connection, messages, body_bytes),
                await _calls(bus, settings, messages, body_bytes),
            ]


async def _bare(connection: Connection, messages: int, body_bytes: int) -> Measurement:
    """The broker alone: bytes of the same size into a stream, each confirmed."""
    data = _envelope(0, body_bytes).encode()
    subject = connection.subjects.work("nobody", "normal", "bench", "work")

    async def one(_: int) -> None:
        await store(connection, subject, data, {}, timeout_s=30)

    await _in_flight(range(WARM_UP), one)
    return await _timed("bytes into a stream", messages, one)


async def _durable(bus: Bus, settings: Settings, messages: int, body_bytes: int) -> list[Measurement]:
    """A backlog: first sent, then handled by one replica, from the first handler to the last."""
    agent, finished, clock = Agent("worker", concurrency=256), asyncio.Event(), _Clock()
    handled = 0

    @agent.on("work")
    async def work(payload: _Work) -> None:
        nonlocal handled
        if handled == 0:
            clock.start()
        handled += 1
        if handled == messages:
            clock.stop()
            finished.set()

    async def send(number: int) -> None:
        await bus.send("worker", "work", _payload(number, body_bytes), workflow_id="bench")

    sent = await _timed("messages sent", messages, send)
    async with agent.running(settings):
        await finished.wait()
    return [sent, clock.reading("messages handled", messages)]


async def _latency(bus: Bus, settings: Settings, body_bytes: int) -> Measurement:
    """One message at a time on an idle bus, from before the send to the first line of the handler."""
    agent, arrived = Agent("prompt"), asyncio.Event()
    times_ms: list[float] = []

    @agent.on("work")
    async def work(payload: _Work) -> None:
        times_ms.append((time.perf_counter_ns() - payload.sent_ns) / 1e6)
        arrived.set()

    async with agent.running(settings):
        for number in range(WARM_UP + LATENCY_MESSAGES):
            arrived.clear()
            await bus.send("prompt", "work", _payload(number, body_bytes), workflow_id="bench")
            await arrived.wait()
    kept = sorted(times_ms[WARM_UP:])
    return Measurement(
        "one at a time, to the handler",
        len(kept),
        1000 / statistics.mean(kept),
        None,
        p50_ms=kept[len(kept) // 2],
        p99_ms=kept[len(kept) * 99 // 100],
    )


async def _bare_requests(connection: Connection, messages: int, body_bytes: int) -> Measurement:
    """The broker alone: a request with bytes of the same size, answered with as few as a call's data."""
    subject = connection.subjects.call("nobody", "bench", "bench.bare")
    answer = orjson.dumps({"number": 0})
    answering = await connection.subscribe(subject, lambda asked: _reply(connection, asked.reply, answer))
    data = orjson.dumps(_payload(0, body_bytes))

    async def one(_: int) -> None:
        await connection.request(subject, data, timeout_s=30)

    try:
        return await _timed_each("requests, bare", messages, one)
    finally:
        await answering.drain()


def _reply(connection: Connection, inbox: str, answer: bytes) -> None:
    connection.post(publish_command(inbox, "", b"", answer))


async def _calls(bus: Bus, settings: Settings, messages: int, body_bytes: int) -> Measurement:
    """Calls of one capability: both gates, envelopes, deadline, registry."""
    agent = Agent("clerk", call_concurrency=IN_FLIGHT)

    @agent.capability("bench.number", description="Gives the number back.", idempotent=True)
    async def number(payload: _Work) -> _Number:
        return _Number(number=payload.number)

    async def one(number: int) -> None:
        await bus.call("bench.number", _payload(number, body_bytes), timeout_s=30)

    async with agent.running(settings):
        return await _timed_each("calls answered", messages, one)


class _Clock:
    """Wall clock and this process's CPU between two moments."""

    def start(self) -> None:
        self._began, self._began_cpu = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        self._elapsed_s, self._cpu_s = time.perf_counter() - self._began, time.process_time() - self._began_cpu

    def reading(self, name: str, messages: int) -> Measurement:
        return Measurement(name, messages, messages / self._elapsed_s, self._cpu_s / messages * 1e6)


async def _timed(name: str, messages: int, one: Callable[[int], Awaitable[None]]) -> Measurement:
    clock = _Clock()
    clock.start()
    await _in_flight(range(messages), one)
    clock.stop()
    return clock.reading(name, messages)


async def _timed_each(name: str, messages: int, one: Callable[[int], Awaitable[None]]) -> Measurement:
    """As `_timed`, after a warm-up, with the time of each."""
    times_ms: list[float] = []

    async def each(number: int) -> None:
        began = time.perf_counter()
        await one(number)
        times_ms.append((time.perf_counter() - began) * 1000)

    await _in_flight(range(WARM_UP), one)
    found = await _timed(name, messages, each)
    kept = sorted(times_ms)
    return dataclasses.replace(found, p50_ms=kept[len(kept) // 2], p99_ms=kept[len(kept) * 99 // 100])


async def _in_flight(numbers: Iterable[int], one: Callable[[int], Awaitable[None]]) -> None:
    waiting = iter(numbers)

    async def worker() -> None:
        for number in waiting:
            await one(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(worker())


def _payload(number: int, body_bytes: int) -> dict[str, Any]:
    return {"number": number, "sent_ns": time.perf_counter_ns(), "body": "x" * body_bytes}


def _envelope(number: int, body_bytes: int) -> Envelope:
    return Envelope(sender="bench", to="worker", type="work", workflow_id="bench", payload=_payload(number, body_bytes))
