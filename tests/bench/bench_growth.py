"""What a consumer grows by from its first 100,000 messages to the last: resident memory, in a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from bus import Agent, Bus
from bus.testing.server import NatsServer
from tests.bench.ways import Task, Work, bus_settings, in_flight, payload

FIRST = 100_000


def resident_mib() -> float:
    """Resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS in /proc/self/status")


async def consume(task: Task) -> None:
    """Handles all and prints the memory on the way."""
    agent, handled, finished = Agent("worker", concurrency=256), 0, asyncio.Event()

    @agent.on("work")
    async def work(payload: Work) -> None:
        nonlocal handled
        handled += 1
        if handled % FIRST == 0:
            print(f"{handled} {resident_mib():.1f}", flush=True)
        if handled == task.count:
            finished.set()

    async with agent.running(bus_settings(task)):
        await finished.wait()


async def publish(task: Task) -> None:
    """Sends all."""
    async with Bus.connect("load", settings=bus_settings(task)) as bus:
        await in_flight(task.numbers, lambda n: bus.send("worker", "work", payload(n, 0), workflow_id="w"))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--consume", nargs=3, metavar=("URL", "NAME", "COUNT"))
    options = parser.parse_args()
    if options.consume:
        url, name, count = options.consume
        asyncio.run(consume(Task(url, name, int(count), 0)))
        return
    with tempfile.TemporaryDirectory() as folder, NatsServer(Path(folder)) as server:
        task = Task(server.url, "growth", options.messages, 0)
        consumer = subprocess.Popen(
            [sys.executable, __file__, "--consume", task.url, task.name, str(task.count)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        asyncio.run(publish(task))
        output, _ = consumer.communicate()
    rows = [line.split() for line in output.splitlines()]
    print(f"{'handled':>10}{'resident MiB':>14}{'grown':>8}")
    for count, mib in rows:
        print(f"{count:>10}{mib:>14}{float(mib) - float(rows[0][1]):>8.1f}")


if __name__ == "__main__":
    main()
