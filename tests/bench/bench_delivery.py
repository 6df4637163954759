"""Messages a second and CPU a message, publisher and consumer in two processes, against raw nats-py.

Each way runs in turn, several rounds; the table shows medians and ratios. Compare the CPU: wall-clock rates depend on
what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
import orjson
from nats.js.api import ConsumerConfig, RetentionPolicy, StreamConfig
from pydantic import BaseModel

sys.path.insert(0, str(Path(__file__).parents[2]))

from bus import Agent, Bus, Envelope, Settings
from bus.testing import NatsServer

IN_FLIGHT = 64


class Work(BaseModel):
    """A realistic payload; the whole envelope has about 700 bytes."""

    number: int
    question: str
    keywords: list[str]


def payload(number: int) -> dict[str, Any]:
    return {
        "number": number,
        "question": "How does the bus make sure that no message is lost?",
        "keywords": ["delivery", "acknowledgement", "stream"],
    }


async def raw_publish(url: str, name: str, count: int) -> float:
    client = await nats.connect(url)
    started = time.process_time()
    js = client.jetstream()
    body = Envelope(sender="load", to="worker", type="work", workflow_id="w", payload=payload(0)).encode()
    slots = asyncio.Semaphore(IN_FLIGHT)

    async def one(n: int) -> None:
        async with slots:
            await js.publish(f"{name}.work", body, headers={"Nats-Msg-Id": str(n)})

    await asyncio.gather(*(one(n) for n in range(count)))
    used = time.process_time() - started
    await client.close()
    return used


async def raw_consume(url: str, name: str, count: int) -> float:
    client = await nats.connect(url)
    js = client.jetstream()
    await js.add_stream(
        StreamConfig(name=name, subjects=[f"{name}.>"], retention=RetentionPolicy.WORK_QUEUE, max_bytes=256 << 20)
    )
    subscription = await js.pull_subscribe(f"{name}.work", "worker", config=ConsumerConfig(max_ack_pending=10_000))
    print("ready", flush=True)
    started = time.process_time()
    done = 0
    while done < count:
        try:
            batch = await subscription.fetch(100, timeout=5)
        except nats.errors.TimeoutError:
            continue
        for message in batch:
            orjson.loads(message.data)
            await message.ack()
        done += len(batch)
    used = time.process_time() - started
    await client.close()
    return used


async def bus_publish(url: str, name: str, count: int) -> float:
    settings = Settings.load(servers=url, namespace=name, work_max_bytes=256 << 20)
    slots = asyncio.Semaphore(IN_FLIGHT)
    async with Bus.connect("load", settings=settings) as bus:
        started = time.process_time()

        async def one(n: int) -> None:
            async with slots:
                await bus.send("worker", "work", payload(n), workflow_id="w")

        await asyncio.gather(*(one(n) for n in range(count)))
        return time.process_time() - started


async def bus_consume(url: str, name: str, count: int) -> float:
    settings = Settings.load(servers=url, namespace=name, work_max_bytes=256 << 20)
    agent, done, finished = Agent("worker", concurrency=256), 0, asyncio.Event()

    @agent.on("work")
    async def work(payload: Work) -> None:
        nonlocal done
        done += 1
        if done == count:
            finished.set()

    async with agent.running(settings):
        print("ready", flush=True)
        started = time.process_time()
        await finished.wait()
        return time.process_time() - started


WAYS = {"raw nats-py": (raw_publish, raw_consume), "envelope-bus": (bus_publish, bus_consume)}


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one way."""

    rate: float
    publisher_us: float
    consumer_us: float


def side(way: str, part: int, url: str, name: str, count: int) -> None:
    """Runs one side in this process and prints the CPU seconds between connecting and closing."""
    print(f"cpu {asyncio.run(WAYS[way][part](url, name, count))}", flush=True)


def run(way: str, url: str, count: int) -> Sample:
    name = f"b{uuid.uuid4().hex[:8]}"

    def begin(part: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, __file__, "--side", way, str(part), url, name, "--messages", str(count)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    consumer = begin(1)
    assert consumer.stdout is not None
    assert consumer.stdout.readline() == "ready\n"
    started = time.perf_counter()
    publisher = begin(0)
    consumed, _ = consumer.communicate(timeout=300)
    elapsed = time.perf_counter() - started
    published, _ = publisher.communicate(timeout=300)
    cpu = [float(text.split()[1]) * 1e6 / count for text in (published, consumed)]
    return Sample(count / elapsed, *cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", nargs=4, metavar=("WAY", "PART", "URL", "NAME"))
    options = parser.parse_args()
    if options.side:
        way, part, url, name = options.side
        side(way, int(part), url, name, options.messages)
        return
    with tempfile.TemporaryDirectory() as folder:
        server = NatsServer(Path(folder))
        server.start()
        try:
            samples: dict[str, list[Sample]] = {way: [] for way in WAYS}
            for _ in range(options.rounds):
                for way in WAYS:
                    samples[way].append(run(way, server.url, options.messages))
        finally:
            server.stop()
    base = statistics.median(one.publisher_us + one.consumer_us for one in samples["raw nats-py"])
    print(f"{'way':<16}{'messages/s':>12}{'publish us':>12}{'consume us':>12}{'CPU ratio':>11}")
    for way, found in samples.items():
        rate = statistics.median(one.rate for one in found)
        publisher = statistics.median(one.publisher_us for one in found)
        consumer = statistics.median(one.consumer_us for one in found)
        total = statistics.median(one.publisher_us + one.consumer_us for one in found)
        print(f"{way:<16}{rate:>12.0f}{publisher:>12.1f}{consumer:>12.1f}{total / base:>11.2f}")


if __name__ == "__main__":
    main()
