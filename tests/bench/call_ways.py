"""The ways to make the same calls that `bench_calls.py` compares; each is a callee and a caller."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import nats
import orjson
from pydantic import BaseModel

from bus import Agent, Bus, Settings

IN_FLIGHT = 100
MODEL = "bench.work"


class Work(BaseModel):
    """The arguments; about 700 bytes as JSON."""

    number: int
    question: str
    keywords: list[str]
    body: str


class Done(BaseModel):
    """The result."""

    number: int


def arguments(number: int) -> dict[str, Any]:
    """One set of arguments."""
    return {
        "number": number,
        "question": "How does the bus make sure that no message is lost, handled twice, or stuck behind a broken one?",
        "keywords": ["delivery", "acknowledgement", "stream", "consumer", "dedupe", "retry", "dead letter"],
        "body": "x" * 430,
    }


@dataclass(frozen=True, slots=True)
class Task:
    """What one side of a run has to do. `port` is a free one, for the ways that bring their own server."""

    url: str
    name: str
    count: int
    port: int

    @property
    def settings(self) -> Settings:
        """Settings of a bus of this run's own."""
        return Settings.load(servers=self.url, namespace=self.name, work_max_bytes=64 << 20)


Ask = Callable[[int], Awaitable[int]]
Context = Callable[[Task], contextlib.AbstractAsyncContextManager[Any]]


async def measure(ask: Ask, count: int) -> tuple[float, list[float]]:
    """Makes the calls, 100 in flight; the seconds of all, and of each."""
    times: list[float] = []
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            started = time.perf_counter()
            assert await ask(number) == number
            times.append(time.perf_counter() - started)

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return time.perf_counter() - started, times


@contextlib.asynccontextmanager
async def raw_callee(task: Task) -> AsyncIterator[None]:
    """nats-py: a subscription that reads the JSON and answers."""
    client = await nats.connect(task.url)

    async def answer(message: Any) -> None:
        await message.respond(orjson.dumps({"number": orjson.loads(message.data)["number"]}))

    await client.subscribe(f"{task.name}.work", "workers", cb=answer)
    await client.flush()
    yield
    await client.close()


@contextlib.asynccontextmanager
async def raw_caller(task: Task) -> AsyncIterator[Ask]:
    """nats-py's own request."""
    client = await nats.connect(task.url)

    async def ask(number: int) -> int:
        answer = await client.request(f"{task.name}.work", orjson.dumps(arguments(number)), timeout=30)
        return int(orjson.loads(answer.data)["number"])

    yield ask
    await client.close()


@contextlib.asynccontextmanager
async def bus_callee(task: Task) -> AsyncIterator[None]:
    """Ours, everything on: checked envelopes, identity, budget, both gates, spans."""
    agent = Agent("worker", call_concurrency=IN_FLIGHT)

    @agent.capability(MODEL, description="Gives the number back.", idempotent=True)
    async def work(request: Work) -> Done:
        return Done(number=request.number)

    async with agent.running(task.settings):
        yield


@contextlib.asynccontextmanager
async def bus_caller(task: Task) -> AsyncIterator[Ask]:
    """Ours: discovery, deadline, envelope, span, liveness."""
    async with Bus.connect("load", settings=task.settings) as bus:

        async def ask(number: int) -> int:
            return int((await bus.call(MODEL, arguments(number), timeout_s=30)).data["number"])

        yield ask


@contextlib.asynccontextmanager
async def faststream_callee(task: Task) -> AsyncIterator[None]:
    """FastStream: a subscriber with a pydantic model."""
    from faststream.nats import NatsBroker

    broker = NatsBroker(task.url, logger=None)

    @broker.subscriber(f"{task.name}.work", "workers")
    async def work(message: Work) -> Done:
        return Done(number=message.number)

    async with broker:
        await broker.start()
        yield


@contextlib.asynccontextmanager
async def faststream_caller(task: Task) -> AsyncIterator[Ask]:
    """FastStream's request."""
    from faststream.nats import NatsBroker

    async with NatsBroker(task.url, logger=None) as broker:

        async def ask(number: int) -> int:
            answer = await broker.request(Work(**arguments(number)), f"{task.name}.work", timeout=30)
            return int((await answer.decode())["number"])  # type: ignore[index]

        yield ask


@contextlib.asynccontextmanager
async def grpc_callee(task: Task) -> AsyncIterator[None]:
    """grpc.aio, with JSON in place of generated messages."""
    import grpc  # type: ignore[import-untyped]

    async def work(request: dict[str, Any], _: Any) -> dict[str, Any]:
        return {"number": Work.model_validate(request).number}

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(work, orjson.loads, orjson.dumps)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Worker", {"Work": handler}),))
    server.add_insecure_port(f"127.0.0.1:{task.port}")
    await server.start()
    yield
    await server.stop(1)


@contextlib.asynccontextmanager
async def grpc_caller(task: Task) -> AsyncIterator[Ask]:
    """A unary call."""
    import grpc

    async with grpc.aio.insecure_channel(f"127.0.0.1:{task.port}") as channel:
        call = channel.unary_unary("/bench.Worker/Work", orjson.dumps, orjson.loads)

        async def ask(number: int) -> int:
            return int((await call(arguments(number), timeout=30))["number"])

        yield ask


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
