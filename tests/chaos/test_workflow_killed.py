"""Workflows whose processes are killed or stopped: one writer at a time, rollbacks come out whole (WF-1, WF-2)."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bus import Bus, BusError
from bus.testing import Ledger, NatsServer, settled
from bus.workflow.handle import WorkflowHandle
from bus.workflow.phases import Phase, Phases
from bus.workflow.rollback import Rollbacks
from tests.chaos.letters import PARTS

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(90)

Spawn = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def spawn(server: NatsServer) -> Iterator[Spawn]:
    """Starts `bus ARGUMENTS` in a process of its own; what still runs at the end is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, **variables: str) -> subprocess.Popen[bytes]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("BUS_", "OTEL_"))}
        own = {"BUS_SERVERS": server.url, "BUS_ACK_WAIT_S": "1", "PYTHONPATH": str(ROOT), "BUS_PUBLISH_TIMEOUT_S": "10"}
        process = subprocess.Popen(
            [sys.executable, "-m", "bus", *arguments],
            cwd=ROOT, env=kept | own | variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.communicate()


BEGINNING = datetime.fromtimestamp(0, UTC)
AGENTS = ("run", "tests.chaos.letters:clerk", "tests.chaos.letters:scribe")


async def letter_of(handle: WorkflowHandle) -> dict[str, int]:
    return await handle.state.read("letter") or {}


@pytest.mark.parametrize("seed", range(int(os.environ.get("CHAOS_ROUNDS", "1"))))
async def test_a_rollback_comes_out_whole_wherever_processes_are_killed(
    server: NatsServer, spawn: Spawn, seed: int
) -> None:
    """WF-2: agents and the one who rolls back are killed at random points; the letter is whole, in the last branch."""
    dice = random.Random(seed)
    agents = [spawn(*AGENTS) for _ in range(2)]
    async with Bus.connect("tester", servers=server.url, publish_timeout_s=20) as bus:
        workflow = bus.workflow("letter", phases=Phases(["plan", Phase("write", limit=1)]))
        sent = await workflow.send("clerk", "order", {})
        async with asyncio.timeout(20):
            while "plan" not in await workflow.checkpoints():
                await asyncio.sleep(0.02)
        for _ in range(2):
            await asyncio.sleep(dice.uniform(0, 0.6))
            victim = dice.randrange(2)
            agents[victim].kill()
            roller = spawn("workflow", "rollback", workflow.id, "plan")
            await asyncio.sleep(dice.uniform(0.3, 1.2))
            roller.kill()
            agents[victim] = spawn(*AGENTS)
        done = await workflow.rollback("plan")
        await settled(bus, 40)
        assert await Rollbacks(bus.connection, workflow.id).unfinished() is None
        assert await letter_of(workflow) == dict.fromkeys(PARTS, done.branch)
        tokens = (await workflow.state.read("tokens") or {})["tokens"]
        assert tokens == sorted(tokens)
        assert len([one async for one in bus.watch(type="ready", since=BEGINNING, follow=False)]) >= 1
        assert [one async for one in bus.dead_letters.list()] == []
        (await Ledger.read(bus, accepted=[sent])).check()


async def test_a_killed_holder_is_followed_and_the_letter_is_whole(server: NatsServer, spawn: Spawn) -> None:
    """WF-1: SIGKILL of a scribe that holds the slot: another one goes on after the lease, nothing is lost."""
    first = spawn(*AGENTS, LETTERS_WORK_S="0.3")
    async with Bus.connect("tester", servers=server.url) as bus:
        workflow = bus.workflow("letter", phases=Phases(["plan", Phase("write", limit=1)]))
        await workflow.send("clerk", "order", {})
        async with asyncio.timeout(20):
            while not await letter_of(workflow):
                await asyncio.sleep(0.02)
        second = spawn(*AGENTS)
        first.kill()
        await settled(bus, 40)
        assert await letter_of(workflow) == dict.fromkeys(PARTS, 0)
        assert second.poll() is None


async def test_a_stopped_holder_does_nothing_after_it_lost_its_slot(server: NatsServer, spawn: Spawn) -> None:
    """WF-1: SIGSTOP of a scribe in its slot for longer than the lease; when it goes on, all that it does is refused."""
    first = spawn(*AGENTS, LETTERS_WORK_S="0.4", LETTERS_TTL_S="1", BUS_ACK_WAIT_S="30")
    async with Bus.connect("tester", servers=server.url) as bus:
        workflow = bus.workflow("letter", phases=Phases(["plan", Phase("write", limit=1)]))
        await workflow.send("clerk", "order", {})
        async with asyncio.timeout(20):
            while not await letter_of(workflow):
                await asyncio.sleep(0.02)
        before = await letter_of(workflow)
        await asyncio.sleep(0.1)
        first.send_signal(signal.SIGSTOP)
        other = WorkflowHandle(bus.connection, workflow.id, branch=0, writer="other")
        async with asyncio.timeout(10), other.slot("write", key="letter", ttl_s=30, timeout_s=10):
            during = await letter_of(workflow)
            assert len(during) - len(before) <= 1
            first.send_signal(signal.SIGCONT)
            # Long enough for what it had in hand; everything of it is refused while another one holds the slot.
            await asyncio.sleep(1.5)
            assert await letter_of(workflow) == during
            await other.state.update("letter", lambda _: {**during, "other": 0})
        await settled(bus, 40)
        assert await letter_of(workflow) == {**dict.fromkeys(PARTS, 0), "other": 0}


async def test_a_checkpoint_and_a_rollback_survive_a_broker_that_is_killed(server: NatsServer, spawn: Spawn) -> None:
    """WF-2: the broker dies while a rollback runs: it is finished by doing it again, and comes out whole."""
    spawn(*AGENTS)
    async with Bus.connect("tester", servers=server.url, publish_timeout_s=20) as bus:
        workflow = bus.workflow("letter", phases=Phases(["plan", Phase("write", limit=1)]))
        await workflow.send("clerk", "order", {})
        async with asyncio.timeout(20):
            while len(await letter_of(workflow)) < 3:
                await asyncio.sleep(0.02)
        rolling = asyncio.create_task(workflow.rollback("plan"))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(server.restart, signal.SIGKILL)
        try:
            done = await rolling
        except BusError:
            done = await workflow.rollback("plan")
        await settled(bus, 60)
        assert await letter_of(workflow) == dict.fromkeys(PARTS, done.branch)
