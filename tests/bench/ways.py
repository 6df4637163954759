"""The ways to carry the same messages that `bench_delivery.py` compares; each is a publisher and a consumer."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import nats
import orjson
from faststream.nats import JStream, NatsBroker, PullSub
from faststream.nats.opentelemetry import NatsTelemetryMiddleware
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, RetentionPolicy, StreamConfig
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pydantic import BaseModel

from bus import Agent, Bus, Envelope, Settings

IN_FLIGHT = 64
MAX_BYTES = 256 << 20
PUBLISH_TIMEOUT_S = 30.0


class Work(BaseModel):
    """The payload; with its envelope about 700 bytes, plus `body` for larger messages."""

    number: int
    question: str
    keywords: list[str]
    body: str = ""


def payload(number: int, extra_bytes: int) -> dict[str, Any]:
    """One payload."""
    return {
        "number": number,
        "question": "How does the bus make sure that no message is lost, handled twice, or stuck behind a broken one?",
        "keywords": ["delivery", "acknowledgement", "stream", "consumer", "dedupe", "retry", "dead letter"],
        "body": "x" * extra_bytes,
    }


@dataclass(frozen=True, slots=True)
class Task:
    """What one side of a run has to do."""

    url: str
    name: str
    count: int
    extra_bytes: int

    @property
    def numbers(self) -> Iterable[int]:
        """The numbers of the messages."""
        return range(self.count)


async def in_flight(numbers: Iterable[int], send: Callable[[int], Awaitable[Any]]) -> None:
    """Calls `send` for each number, so many at once."""
    waiting = iter(numbers)

    async def worker() -> None:
        for number in waiting:
            await send(number)

    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))


def ready() -> float:
    """Tells the runner that this side can begin; returns the CPU seconds used so far.

    What has been imported is put out of the garbage collector's way first, as `bus run` does it.
    """
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    return time.process_time()


def handled(started: float) -> float:
    """Tells the runner that the last message was handled; returns the CPU seconds since `started`."""
    used = time.process_time() - started
    print("handled", flush=True)
    return used


async def raw_publish(task: Task) -> float:
    """nats-py's own JetStream publish."""
    client = await nats.connect(task.url)
    js = client.jetstream()
    body = Envelope(
        sender="load", to="worker", type="work", workflow_id="w", payload=payload(0, task.extra_bytes)
    ).encode()
    started = ready()
    await in_flight(
        task.numbers, lambda n: js.publish(f"{task.name}.work", body, headers={"Nats-Msg-Id": f"{task.name}-{n}"})
    )
    used = time.process_time() - started
    await client.close()
    return used


async def add_stream(js: JetStreamContext, task: Task) -> None:
    """A work queue on file, as ours is."""
    await js.add_stream(
        StreamConfig(
            name=task.name, subjects=[f"{task.name}.>"], retention=RetentionPolicy.WORK_QUEUE, max_bytes=MAX_BYTES
        )
    )


async def raw_consume(task: Task) -> float:
    """nats-py's own pull subscription: fetch 100, read the JSON, acknowledge."""
    client = await nats.connect(task.url)
    js = client.jetstream()
    await add_stream(js, task)
    subscription = await js.pull_subscribe(f"{task.name}.work", "worker", config=ConsumerConfig(max_ack_pending=10_000))
    started = ready()
    done = 0
    while done < task.count:
        try:
            batch = await subscription.fetch(100, timeout=5)
        except nats.errors.TimeoutError:
            continue
        for message in batch:
            orjson.loads(message.data)
            await message.ack()
        done += len(batch)
    used = handled(started)
    await client.close()
    return used


def bus_settings(task: Task) -> Settings:
    """Settings of a bus of this run's own."""
    return Settings.load(servers=task.url, namespace=task.name, work_max_bytes=MAX_BYTES)


async def bus_publish(task: Task) -> float:
    """Ours, everything on: checked envelope, Nats-Msg-Id, span."""
    async with Bus.connect("load", settings=bus_settings(task)) as bus:
        started = ready()
        await in_flight(
            task.numbers,
            lambda n: bus.send("worker", "work", payload(n, task.extra_bytes), workflow_id=f"{task.name}-{n}"),
        )
        used = time.process_time() - started
    return used


async def bus_consume(task: Task) -> float:
    """Ours, everything on: checks, dedupe, typed payload, stored completion, acknowledgement, span."""
    agent, done, finished = Agent("worker", concurrency=256), 0, asyncio.Event()

    @agent.on("work")
    async def work(payload: Work) -> None:
        nonlocal done
        done += 1
        if done == task.count:
            finished.set()

    async with agent.running(bus_settings(task)):
        started = ready()
        await finished.wait()
        return handled(started)


@contextlib.asynccontextmanager
async def faststream(task: Task, *, traced: bool) -> AsyncIterator[NatsBroker]:
    """A FastStream broker, with its OpenTelemetry middleware when traced."""
    if not traced:
        yield NatsBroker(task.url, logger=None)  # else it writes two lines a message
        return
    provider = TracerProvider(resource=Resource.create({"service.name": "faststream"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), max_queue_size=65_536))
    yield NatsBroker(task.url, logger=None, middlewares=[NatsTelemetryMiddleware(tracer_provider=provider)])
    await asyncio.to_thread(provider.shutdown)


async def faststream_publish(task: Task, *, traced: bool = False) -> float:
    """FastStream's publish of a pydantic model into a stream."""
    async with faststream(task, traced=traced) as broker, broker:
        started = ready()

        async def send(n: int) -> None:
            # Its own is half a second, and a busy machine sometimes needs more.
            await broker.publish(
                Work(**payload(n, task.extra_bytes)), f"{task.name}.work", stream=task.name, timeout=PUBLISH_TIMEOUT_S
            )

        await in_flight(task.numbers, send)
        used = time.process_time() - started
    return used


async def faststream_consume(task: Task, *, traced: bool = False) -> float:
    """FastStream's pull subscriber with a pydantic model."""
    done, finished = 0, asyncio.Event()
    client = await nats.connect(task.url)
    await add_stream(client.jetstream(), task)
    await client.close()
    async with faststream(task, traced=traced) as broker:
        stream = JStream(task.name, declare=False)

        @broker.subscriber(
            f"{task.name}.work", stream=stream, durable="worker", pull_sub=PullSub(batch_size=100), no_reply=True
        )
        async def work(message: Work) -> None:
            nonlocal done
            done += 1
            if done == task.count:
                finished.set()

        async with broker:
            await broker.start()
            started = ready()
            await finished.wait()
            return handled(started)


Side = Callable[[Task], Awaitable[float]]


@dataclass(frozen=True, slots=True)
class Way:
    """Publisher, consumer, and the environment that both run in."""

    publish: Side
    consume: Side
    environment: dict[str, str]


def ways(receiver: str) -> dict[str, Way]:
    """Every way by its name; `receiver` is where traced ones send their spans."""
    traced = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver}
    one_percent = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"}
    return {
        "raw nats-py": Way(raw_publish, raw_consume, {}),
        "bus, 1% traced": Way(bus_publish, bus_consume, {**traced, **one_percent}),
        "bus, all traced": Way(bus_publish, bus_consume, traced),
        "FastStream": Way(faststream_publish, faststream_consume, {}),
        "FastStream + OTel": Way(
            lambda task: faststream_publish(task, traced=True),
            lambda task: faststream_consume(task, traced=True),
            traced,
        ),
    }


def environment(way: Way) -> dict[str, str]:
    """The variables for a side's process."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "BUS_"))}
    return {**kept, **way.environment}
