"""Workers are killed with SIGKILL: their messages come again elsewhere, completed ones do not (DEL-2, DEL-5)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections import Counter
from pathlib import Path

import pytest

from bus import Agent, Bus, Settings
from bus.broker.survey import agent_queues
from bus.testing import NatsServer

COUNT = 60

WORKER = """
import asyncio
from bus import Agent, Message

worker = Agent("worker", concurrency=4)

@worker.on("job")
async def job(payload: dict, message: Message) -> None:
    await asyncio.sleep(0.05)
    await message.send("counter", "done", {"n": payload["n"]})
"""


async def start_worker(folder: Path, server: NatsServer) -> Process:
    """One replica in a process of its own, by the command line."""
    environment = {**os.environ, "BUS_ACK_WAIT_S": "1", "PYTHONPATH": str(Path.cwd()), "BUS_WORK_MAX_BYTES": "33554432"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bus", "run", "worker:worker", "--servers", server.url, "--grace", "5",
        cwd=folder, env=environment, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    while b"running worker" not in (line := await process.stderr.readline()):
        assert line, "the worker ended before it ran"
    return process


@pytest.mark.timeout(60)
async def test_killed_workers_lose_and_double_nothing(server: NatsServer, tmp_path: Path) -> None:
    """Two of three replicas die in the middle; every message's result arrives once."""
    (tmp_path / "worker.py").write_text(WORKER)
    settings = Settings.load(servers=server.url, ack_wait_s=1, work_max_bytes=32 << 20)
    counter, counted = Agent("counter"), Counter[int]()

    @counter.on("done")
    async def done(payload: dict[str, int]) -> None:
        counted[payload["n"]] += 1

    workers = [await start_worker(tmp_path, server) for _ in range(3)]
    try:
        async with Bus.connect("load", settings=settings) as bus, counter.running(settings):
            for n in range(COUNT):
                await bus.send("worker", "job", {"n": n})
            for victim in workers[:2]:
                seen = len(counted)
                while len(counted) == seen:
                    await asyncio.sleep(0.01)
                victim.send_signal(signal.SIGKILL)
            while len(counted) < COUNT:
                await asyncio.sleep(0.05)
            while any(queue.waiting or queue.in_flight for queue in await agent_queues(bus.connection)):
                await asyncio.sleep(0.05)
            assert [one async for one in bus.dead_letters.list()] == []
        assert counted == Counter(range(COUNT))
        workers[2].send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(workers[2].wait(), 10) == 0
    finally:
        for process in workers:
            if process.returncode is None:
                process.kill()
            await process.wait()
