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
from bus.broker.survey import agent_queues
from bus.calls.tasks.record import TaskState
from bus.calls.tasks.task import Task
from bus.testing import NatsServer

ROOT = Path(__file__).parents[2]
SOURCE = """
import asyncio, os, pathlib
from bus import Agent, Call, RetryPolicy

desk = Agent("desk")
mortal = Agent("mortal", retry=RetryPolicy(max_attempts=1))

def note(call):
    with open("runs", "a") as runs:
        runs.write(f"{call.task_id} {call.attempt} {os.getpid()}\\n")

@desk.capability("desk.work", description="Works.", long=True)
async def work(call: Call, seconds: float) -> list[int]:
    note(call)
    await asyncio.sleep(seconds if call.attempt == 1 else 0)
    return [os.getpid(), call.attempt]

@desk.capability("desk.below", description="Has it done by others.", long=True)
async def below(call: Call) -> None:
    child = await call.submit("desk.work", {"seconds": 60})
    pathlib.Path("child").write_text(child.id)
    await child.result()

@mortal.capability("mortal.die", description="Ends its replica.", long=True)
async def die(call: Call) -> None:
    note(call)
    os.kill(os.getpid(), 9)
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
            sys.executable, "-m", "bus", "run", "desk:desk", "desk:mortal", "--log-level", "error",
            cwd=self.folder, env=self._environment, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self.running.append(process)
        assert process.stderr is not None
        while b"running" not in (line := await process.stderr.readline()):
            assert line, "the replica ended before it ran"
        return process

    def runs(self) -> list[list[str]]:
        """Task, attempt and process of each run that began."""
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


async def waiting_messages(bus: Bus) -> int:
    """How many messages no replica has settled yet."""
    queues = [queue for queue in await agent_queues(bus.connection) if queue.agent in ("desk", "mortal")]
    return sum(queue.waiting + queue.in_flight for queue in queues)


async def runs(task: Task) -> None:
    async with asyncio.timeout(10):
        async for record in task.follow():
            if record.state is TaskState.RUNNING:
                return


async def test_a_killed_replica_leaves_no_task_without_an_end(desks: Desks, asker: Bus) -> None:
    """REG-8, DEL-4: what it ran goes on elsewhere, counted; what killed it fails and is a dead letter; what is
    cancelled now is so at once, with what was submitted in its course, and nothing of that ever runs again.
    """
    first = await desks.start()
    work, below = await asker.submit("desk.work", {"seconds": 60}), await asker.submit("desk.below", {})
    async with asyncio.timeout(10):
        while len(desks.runs()) < 2:
            await asyncio.sleep(0.02)
    child = asker.task((desks.folder / "child").read_text())
    die = await asker.submit("mortal.die", {})
    assert await first.wait() == -signal.SIGKILL
    started = time.monotonic()
    assert (await below.cancel()).state is TaskState.CANCELLED
    assert time.monotonic() - started < 1
    assert (await child.status()).state is TaskState.CANCELLED

    second = await desks.start()
    assert (await work.result(timeout_s=20)).data == [second.pid, 2]
    failed = await die.outcome(timeout_s=20)
    assert failed.error is not None
    assert "its replica ended" in failed.error.message
    async with asyncio.timeout(10):
        while await waiting_messages(asker):
            await asyncio.sleep(0.05)
    assert [letter.agent async for letter in asker.dead_letters.list()] == ["mortal"]
    states = [(await one.status()).state for one in (work, die, below, child)]
    assert states == [TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED, TaskState.CANCELLED]
    runs = [(id, attempt) for id, attempt, _ in desks.runs()]
    assert sorted(runs) == sorted([(work.id, "1"), (child.id, "1"), (die.id, "1"), (work.id, "2")])


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
    assert [one for one, *_ in desks.runs()] == [done.id, slow.id]
