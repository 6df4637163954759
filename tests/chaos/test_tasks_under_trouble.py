"""Tasks while things die: the replica that runs one, all of them, the broker, the one who asked (REG-8, DEL-5)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bus import Bus, Settings
from bus.calls.tasks.record import TaskState
from bus.calls.tasks.task import Task
from bus.testing import NatsServer

ROOT = Path(__file__).parents[2]
SOURCE = """
import asyncio, os, pathlib
from bus import Agent, Call, RetryPolicy

desk = Agent("desk", retry=RetryPolicy(max_attempts=2, base_s=0.01))

@desk.capability("desk.work", description="Works.", long=True)
async def work(call: Call, seconds: float) -> list[int]:
    with open("runs", "a") as runs:
        runs.write(f"{call.task_id} {os.getpid()}\\n")
    await asyncio.sleep(seconds if call.attempt == 1 else 0.2)
    return [os.getpid(), call.attempt]

@desk.capability("desk.die", description="Ends its replica.", long=True)
async def die(call: Call) -> None:
    os.kill(os.getpid(), 9)

@desk.capability("desk.below", description="Has it done by others.", long=True)
async def below(call: Call) -> None:
    child = await call.submit("desk.work", {"seconds": 60})
    pathlib.Path("child").write_text(child.id)
    await child.result()
"""


class Desks:
    """Replicas in processes of their own."""

    def __init__(self, folder: Path, server: NatsServer) -> None:
        (folder / "desk.py").write_text(SOURCE)
        self.folder = folder
        self._environment = {
            **os.environ,
            "BUS_SERVERS": server.url,
            "BUS_ACK_WAIT_S": "1",
            "BUS_WORK_MAX_BYTES": str(32 << 20),
            "PYTHONPATH": str(ROOT),
        }
        self.running: list[Process] = []

    async def start(self) -> Process:
        """Starts one; returns when it runs."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bus", "run", "desk:desk", "--log-level", "error",
            cwd=self.folder, env=self._environment, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self.running.append(process)
        assert process.stderr is not None
        while b"running" not in (line := await process.stderr.readline()):
            assert line, "the replica ended before it ran"
        return process

    def runs(self) -> list[list[str]]:
        """Task and process of each run that began."""
        path = self.folder / "runs"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    async def stop(self) -> None:
        """Kills what is left."""
        for process in self.running:
            if process.returncode is None:
                process.kill()
            await process.communicate()


@pytest.fixture
async def desks(tmp_path: Path, server: NatsServer) -> AsyncIterator[Desks]:
    """Starts replicas."""
    made = Desks(tmp_path, server)
    yield made
    await made.stop()


@pytest.fixture
async def asker(server: NatsServer) -> AsyncIterator[Bus]:
    """A client on the same server."""
    settings = Settings.load(servers=server.url, ack_wait_s=1, work_max_bytes=32 << 20)
    async with Bus.connect("tester", settings=settings) as bus:
        yield bus


async def runs(task: Task) -> None:
    async with asyncio.timeout(10):
        async for record in task.follow():
            if record.state is TaskState.RUNNING:
                return


async def test_a_killed_replica_costs_nothing_but_time(desks: Desks, asker: Bus) -> None:
    """REG-8: another one goes on, the attempts are counted, and who waits hears the result."""
    first = await desks.start()
    task = await asker.submit("desk.work", {"seconds": 60})
    waiting = asyncio.create_task(task.result(timeout_s=20))
    await runs(task)
    second = await desks.start()
    first.send_signal(signal.SIGKILL)
    assert (await waiting).data == [second.pid, 2]
    assert (await task.status()).attempts == 2


async def test_a_task_that_ends_its_replicas_fails_and_is_a_dead_letter(desks: Desks, asker: Bus) -> None:
    """REG-8, DEL-4: attempts are used up by deaths as well; then it is terminal, and a person finds why."""
    await asyncio.gather(*(desks.start() for _ in range(3)))
    task = await asker.submit("desk.die", {})
    outcome = await task.outcome(timeout_s=20)
    assert outcome.error is not None
    assert "its replica ended" in outcome.error.message
    assert (await task.status()).attempts == 2
    async with asyncio.timeout(10):
        while not [letter async for letter in asker.dead_letters.list(agent="desk")]:
            await asyncio.sleep(0.05)
    await asyncio.wait({asyncio.create_task(one.wait()) for one in desks.running[:2]}, timeout=10)
    assert [one.returncode for one in desks.running].count(-signal.SIGKILL) == 2


async def test_a_cancel_needs_no_living_replica(desks: Desks, asker: Bus) -> None:
    """REG-8: terminal at once when the worker is dead, for what it submitted too; nothing of it ever runs again."""
    first = await desks.start()
    task = await asker.submit("desk.below", {})
    async with asyncio.timeout(10):
        while not desks.runs():
            await asyncio.sleep(0.02)
    child = asker.task((desks.folder / "child").read_text())
    first.send_signal(signal.SIGKILL)
    await first.wait()
    started = time.monotonic()
    assert (await task.cancel()).state is TaskState.CANCELLED
    assert time.monotonic() - started < 1
    assert (await child.status()).state is TaskState.CANCELLED
    await desks.start()
    after = await asker.submit("desk.work", {"seconds": 0})
    await after.result(timeout_s=10)
    await asyncio.sleep(2)  # Both messages of the dead come again after their ack wait.
    assert [one for one, _ in desks.runs()] == [child.id, after.id]
    assert [(await one.status()).state for one in (task, child)] == [TaskState.CANCELLED] * 2


async def test_a_killed_broker_forgets_no_task(desks: Desks, asker: Bus, server: NatsServer) -> None:
    """REG-8: queued, running and cancelled ones are what they were, and the running one runs once."""
    done = await asker.submit("desk.work", {"seconds": 0}, agent="desk")
    dropped = await asker.submit("desk.work", {"seconds": 0}, agent="desk")
    await dropped.cancel()
    await asyncio.to_thread(server.restart, signal.SIGKILL)
    await desks.start()
    assert (await done.result(timeout_s=15)).ok
    slow = await asker.submit("desk.work", {"seconds": 4})
    await runs(slow)
    waiting = asyncio.create_task(slow.result(timeout_s=20))
    await asyncio.to_thread(server.restart, signal.SIGKILL)
    assert (await waiting).data[1] == 1
    assert (await dropped.status()).state is TaskState.CANCELLED
    assert [one for one, _ in desks.runs()] == [done.id, slow.id]
