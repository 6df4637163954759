"""Time of one message on an idle system, from before the publish to the first line of the handler, beside raw nats-py.

Both in one process, in turn; the raw one waits in `fetch(1)`, as a reader of nats-py's own API does.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path

import nats
import nats.errors

sys.path.insert(0, str(Path(__file__).parents[2]))

from bus import Agent, Bus
from bus.testing.server import NatsServer
from tests.bench.ways import Task, Work, add_stream, bus_settings, payload

WARM_UP = 100


async def raw(task: Task) -> list[float]:
    """nats-py: publish with an answer, fetch one, acknowledge."""
    client = await nats.connect(task.url)
    js = client.jetstream()
    await add_stream(js, task)
    subscription = await js.pull_subscribe(f"{task.name}.work", "worker")
    times: list[float] = []
    body = b"x" * 700

    async def read() -> None:
        while len(times) < task.count:
            try:
                (message,) = await subscription.fetch(1, timeout=5)
            except nats.errors.TimeoutError:
                continue
            times.append((time.perf_counter() - began) * 1000)
            handled.set()
            await message.ack()

    reading, handled = asyncio.create_task(read()), asyncio.Event()
    for _ in task.numbers:
        handled.clear()
        await asyncio.sleep(0.001)
        began = time.perf_counter()
        await js.publish(f"{task.name}.work", body)
        await handled.wait()
    await reading
    await client.close()
    return times[WARM_UP:]


async def ours(task: Task) -> list[float]:
    """The bus, everything on."""
    agent, handled = Agent("worker"), asyncio.Event()
    times: list[float] = []

    @agent.on("work")
    async def work(payload: Work) -> None:
        times.append((time.perf_counter() - began) * 1000)
        handled.set()

    async with agent.running(bus_settings(task)), Bus.connect("load", settings=bus_settings(task)) as bus:
        for number in task.numbers:
            handled.clear()
            await asyncio.sleep(0.001)
            began = time.perf_counter()
            await bus.send("worker", "work", payload(number, task.extra_bytes), workflow_id="w")
            await handled.wait()
    return times[WARM_UP:]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, NatsServer(Path(folder)) as server:
        found: dict[str, list[tuple[float, float]]] = {"raw nats-py": [], "bus": []}
        for _ in range(options.rounds):
            for name, way in (("raw nats-py", raw), ("bus", ours)):
                task = Task(server.url, f"b{uuid.uuid4().hex[:8]}", options.messages + WARM_UP, 0)
                times = sorted(asyncio.run(way(task)))
                found[name].append((times[len(times) // 2], times[len(times) * 99 // 100]))
    base = statistics.median(p50 for p50, _ in found["raw nats-py"])
    print(f"one message at a time, {options.messages} messages, {options.rounds} rounds, medians")
    print(f"{'':<14}{'p50 ms':>8}{'p99 ms':>8}{'p50 of raw':>12}")
    for name, rows in found.items():
        p50, p99 = statistics.median(row[0] for row in rows), statistics.median(row[1] for row in rows)
        print(f"{name:<14}{p50:>8.2f}{p99:>8.2f}{p50 / base:>12.2f}")


if __name__ == "__main__":
    main()
