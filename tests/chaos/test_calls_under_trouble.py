"""Calls while things die: the callee, the broker, the link (REG-2, REG-5, TOOL-5)."""

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

from bus import Bus, CallDraft, Settings, ToolError
from bus.testing import NatsServer

ROOT = Path(__file__).parents[2]
SOURCE = """
import asyncio, os
from bus import Agent

alice, carol = Agent("alice"), Agent("carol")

for agent in (alice, carol):
    @agent.capability("slow.safe", description="May run twice.", idempotent=True, timeout_s=20)
    async def safe(seconds: float) -> int:
        await asyncio.sleep(seconds)
        return os.getpid()

    @agent.capability("slow.unsafe", description="Must not run twice.", timeout_s=20)
    async def unsafe(seconds: float) -> int:
        await asyncio.sleep(seconds)
        return os.getpid()
"""


class Callees:
    """Replicas in processes of their own."""

    def __init__(self, folder: Path, server: NatsServer) -> None:
        (folder / "callee.py").write_text(SOURCE)
        self._folder = folder
        self._environment = {
            **os.environ,
            "BUS_SERVERS": server.url,
            "BUS_HEARTBEAT_S": "0.5",
            "BUS_LEASE_TTL_S": "2",
            "BUS_WORK_MAX_BYTES": str(32 << 20),
            "PYTHONPATH": str(ROOT),
        }
        self.running: list[Process] = []

    async def start(self, agent: str = "alice") -> Process:
        """Starts one; returns when it is registered."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bus", "run", f"callee:{agent}", "--log-level", "error",
            cwd=self._folder, env=self._environment, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self.running.append(process)
        assert process.stderr is not None
        while b"running" not in (line := await process.stderr.readline()):
            assert line, "the callee ended before it ran"
        return process

    async def stop(self) -> None:
        """Kills what is left."""
        for process in self.running:
            if process.returncode is None:
                process.kill()
            await process.communicate()


@pytest.fixture
async def callees(tmp_path: Path, server: NatsServer) -> AsyncIterator[Callees]:
    """Starts replicas."""
    made = Callees(tmp_path, server)
    yield made
    await made.stop()


@pytest.fixture
async def caller(server: NatsServer) -> AsyncIterator[Bus]:
    """A client on the same server."""
    settings = Settings.load(servers=server.url, heartbeat_s=0.5, lease_ttl_s=2, work_max_bytes=32 << 20)
    async with Bus.connect("tester", settings=settings) as bus:
        yield bus


async def which(bus: Bus, pids: set[int], name: str = "slow.safe") -> None:
    """Waits until exactly these replicas have answered."""
    seen: set[int] = set()
    async with asyncio.timeout(15):
        while seen != pids:
            seen.add((await bus.call(name, {"seconds": 0})).data)


async def test_a_callee_that_is_killed_in_the_middle_is_noticed_and_safe_work_goes_elsewhere(
    callees: Callees, caller: Bus
) -> None:
    first = await callees.start()
    await caller.call("slow.safe", {"seconds": 0})
    safe = asyncio.create_task(caller.call("slow.safe", {"seconds": 5}))
    unsafe = asyncio.create_task(caller.call("slow.unsafe", {"seconds": 5}))
    keyed = asyncio.create_task(caller.call("slow.unsafe", {"seconds": 5}, idempotency_key="k"))
    second = await callees.start()
    first.kill()
    killed_at = time.monotonic()
    with pytest.raises(ToolError, match="may have run") as lost:
        await unsafe
    assert lost.value.info.code == "agent.unavailable"
    assert time.monotonic() - killed_at < 6
    assert [(await one).data for one in (safe, keyed)] == [second.pid, second.pid]


async def test_a_killed_agent_is_passed_over_at_once_and_forgotten_within_its_time(
    callees: Callees, caller: Bus
) -> None:
    alice, carol = await callees.start("alice"), await callees.start("carol")
    await which(caller, {alice.pid, carol.pid})
    alice.send_signal(signal.SIGKILL)
    await alice.wait()
    died_at = time.monotonic()
    for _ in range(6):
        started = time.monotonic()
        assert (await caller.call("slow.safe", {"seconds": 0})).data == carol.pid
        assert time.monotonic() - started < 1
    with_alice = await caller.capabilities.find(agent="alice")
    while with_alice:
        assert time.monotonic() - died_at < 6
        await asyncio.sleep(0.1)
        with_alice = await caller.capabilities.find(agent="alice")


async def test_the_only_agent_killed_is_an_error_in_milliseconds(callees: Callees, caller: Bus) -> None:
    alice = await callees.start()
    await caller.call("slow.safe", {"seconds": 0})
    alice.kill()
    await alice.wait()
    started = time.monotonic()
    with pytest.raises(ToolError) as gone:
        await caller.call("slow.safe", {"seconds": 0})
    assert gone.value.info.code == "agent.unavailable"
    assert time.monotonic() - started < 1


async def test_a_killed_broker_drops_no_live_agent_and_no_call_hangs(
    callees: Callees, caller: Bus, server: NatsServer
) -> None:
    pids = {(await callees.start()).pid, (await callees.start()).pid}
    await which(caller, pids)
    drafts = [CallDraft("slow.safe", {"seconds": 0.02}, timeout_s=15) for _ in range(400)]
    calling = asyncio.create_task(caller.call_many(drafts, in_flight=20))
    await asyncio.sleep(0.1)
    await asyncio.to_thread(server.restart, signal.SIGKILL)
    results = await asyncio.wait_for(calling, 25)
    assert len(results) == 400
    assert {one.error.code for one in results.values() if one.error} <= {"agent.unavailable", "broker.unavailable"}
    assert sum(one.ok for one in results.values()) > 300
    await which(caller, pids)
    assert len((await caller.capabilities.find("slow.safe"))[0].instances) == 2


async def test_a_paused_broker_longer_than_the_lease_drops_no_live_agent(
    callees: Callees, caller: Bus, server: NatsServer
) -> None:
    pid = (await callees.start()).pid
    await which(caller, {pid})
    server.pause()
    await asyncio.sleep(3.5)
    server.resume()
    await which(caller, {pid})
    assert len((await caller.capabilities.find("slow.safe"))[0].instances) == 1
