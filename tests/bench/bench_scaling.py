"""CPU a message for bodies of 1, 10 and 100 KB, and for 1 to 8 replicas that share one agent's messages."""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from bus import Agent, Bus
from bus.testing.server import NatsServer
from tests.bench.ways import Task, Work, bus_settings, in_flight, payload

KB = 1000


async def consume(task: Task) -> None:
    """One replica: handles until it is told to stop, then prints how many and with how much CPU."""
    agent, handled = Agent("worker", concurrency=64), 0

    @agent.on("work")
    async def work(payload: Work) -> None:
        nonlocal handled
        handled += 1

    async with agent.running(bus_settings(task)):
        began = time.process_time()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print(handled, time.process_time() - began, flush=True)


async def publish(task: Task) -> float:
    """Sends all and waits until all are handled; returns the CPU of the sending."""
    async with Bus.connect("load", settings=bus_settings(task)) as bus:
        began = time.process_time()
        await in_flight(
            task.numbers, lambda n: bus.send("worker", "work", payload(n, task.extra_bytes), workflow_id="w")
        )
        used = time.process_time() - began
        while (await bus.connection.jetstream().stream_info(f"{task.name.upper()}_WORK")).state.messages:
            await asyncio.sleep(0.02)
    return used


def run(url: str, *, messages: int, extra_bytes: int, replicas: int) -> tuple[float, float, float]:
    """Messages a second, and CPU us a message of the sender and of all replicas together."""
    task = Task(url, f"b{uuid.uuid4().hex[:8]}", messages, extra_bytes)
    workers = [
        subprocess.Popen(
            [sys.executable, __file__, "--consume", task.url, task.name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(replicas)
    ]  # fmt: skip
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    began = time.perf_counter()
    sent_s = asyncio.run(publish(task))
    elapsed_s = time.perf_counter() - began
    answers = [worker.communicate("stop\n")[0].split() for worker in workers]
    assert sum(int(handled) for handled, _ in answers) == messages
    handled_s = sum(float(cpu) for _, cpu in answers)
    return messages / elapsed_s, sent_s / messages * 1e6, handled_s / messages * 1e6


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--consume", nargs=2, metavar=("URL", "NAME"))
    options = parser.parse_args()
    if options.consume:
        url, name = options.consume
        asyncio.run(consume(Task(url, name, 0, 0)))
        return
    with tempfile.TemporaryDirectory() as folder, NatsServer(Path(folder)) as server:
        print(f"{'body KB':>8}{'replicas':>10}{'messages/s':>12}{'send us':>9}{'handle us':>11}{'us a KB':>9}")
        for kilobytes, replicas in [(1, 1), (10, 1), (100, 1), (1, 2), (1, 4), (1, 8)]:
            count = options.messages if kilobytes < 100 else options.messages // 10
            rate, sent, handled = run(server.url, messages=count, extra_bytes=(kilobytes * KB) - 400, replicas=replicas)
            print(
                f"{kilobytes:>8}{replicas:>10}{rate:>12.0f}{sent:>9.1f}{handled:>11.1f}"
                f"{(sent + handled) / kilobytes:>9.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
