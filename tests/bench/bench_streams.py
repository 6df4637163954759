"""Chunks of streamed calls, beside raw nats-py that stores as many messages, each confirmed before the next.

All in one process, in turn, interleaved.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import nats

sys.path.insert(0, str(Path(__file__).parents[2]))

from bus import Agent, Bus
from bus.testing.server import NatsServer
from tests.bench.ways import Task, add_stream, bus_settings

TEXT = "x" * 100
CALLS = 30


async def raw(task: Task) -> float:
    """Seconds to store the messages one after another."""
    client = await nats.connect(task.url)
    js = client.jetstream()
    await add_stream(js, task)
    began = time.perf_counter()
    for _ in task.numbers:
        await js.publish(f"{task.name}.work", TEXT.encode())
    took_s = time.perf_counter() - began
    await client.close()
    return took_s


async def ours(task: Task) -> tuple[float, float, float]:
    """Seconds to read one stream, twenty at once with as many chunks in all, and median seconds to a first chunk."""
    agent = Agent("writer")

    @agent.capability("text.write", description="Writes.", timeout_s=300)
    async def write(chunks: int) -> AsyncIterator[str]:
        for _ in range(chunks):
            yield TEXT

    async with agent.running(bus_settings(task)), Bus.connect("load", settings=bus_settings(task)) as bus:

        async def read(chunks: int) -> float:
            began, first_s = time.perf_counter(), 0.0
            async for _ in bus.stream("text.write", {"chunks": chunks}):
                first_s = first_s or time.perf_counter() - began
            return first_s

        firsts = [await read(1) for _ in range(CALLS)]
        began = time.perf_counter()
        await read(task.count)
        one_s, began = time.perf_counter() - began, time.perf_counter()
        await asyncio.gather(*(read(task.count // 20) for _ in range(20)))
        return one_s, time.perf_counter() - began, statistics.median(firsts)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, NatsServer(Path(folder)) as server:
        stored, streamed = [], []
        for _ in range(options.rounds):
            tasks = [Task(server.url, f"b{uuid.uuid4().hex[:8]}", options.chunks, 0) for _ in range(2)]
            stored.append(asyncio.run(raw(tasks[0])))
            streamed.append(asyncio.run(ours(tasks[1])))
    one_s, many_s, first_s = (statistics.median(column) for column in zip(*streamed, strict=True))
    print(f"{options.chunks} chunks of {len(TEXT)} bytes, {options.rounds} rounds, medians")
    print(f"raw nats-py, stored one by one  {options.chunks / statistics.median(stored):>8.0f}/s")
    print(f"one stream, read to its end     {options.chunks / one_s:>8.0f}/s")
    print(f"twenty streams at once          {options.chunks / many_s:>8.0f}/s")
    print(f"from the call to a first chunk  {first_s * 1000:>8.2f} ms")


if __name__ == "__main__":
    main()
