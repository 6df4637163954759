"""Streamed calls while things die: the broker, the callee, the reader (REG-7)."""

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

from bus import Agent, Bus, Settings, ToolError
from bus.testing import NatsServer
from tests.link import Link

ROOT = Path(__file__).parents[2]
CALLEE = """
import asyncio
from collections.abc import AsyncIterator
from bus import Agent

alice = Agent("alice")

@alice.capability("numbers.count", description="Counts.", timeout_s=25)
async def count(until: int, pause_s: float) -> AsyncIterator[int]:
    try:
        for number in range(1, until + 1):
            yield number
            await asyncio.sleep(pause_s)
    finally:
        print("closed", flush=True)
"""
READER = """
import asyncio, sys
from bus import Bus

async def main():
    async with Bus.connect("tester") as bus:
        stream = bus.stream("numbers.count", {"until": 100000, "pause_s": 0.005})
        async for number in stream:
            print(stream.call_id, number, flush=True)

asyncio.run(main())
"""


@pytest.fixture
def settings(server: NatsServer) -> Settings:
    """Settings on the test's own server; an unread stream ends after 2 s."""
    return Settings.load(
        servers=server.url,
        heartbeat_s=0.5,
        lease_ttl_s=2,
        work_max_bytes=32 << 20,
        stream_max_bytes=32 << 20,
        reader_timeout_s=2,
        grace_s=2,
    )


@pytest.fixture
async def bus(settings: Settings) -> AsyncIterator[Bus]:
    """A client on that server."""
    async with Bus.connect("tester", settings=settings) as one:
        yield one


class Processes:
    """Programs on that server."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        (folder / "callee.py").write_text(CALLEE)
        (folder / "reader.py").write_text(READER)
        names = ("servers", "heartbeat_s", "lease_ttl_s", "work_max_bytes", "stream_max_bytes", "reader_timeout_s")
        self._environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{folder}",
            **{f"BUS_{name.upper()}": str(getattr(settings, name)) for name in names},
        }
        self._running: list[Process] = []

    async def start(self, *arguments: str) -> Process:
        """Starts a Python program; its standard output can be read."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, env=self._environment, stdout=asyncio.subprocess.PIPE
        )
        self._running.append(process)
        return process

    async def stop(self) -> None:
        """Kills what is left."""
        for process in self._running:
            if process.returncode is None:
                process.kill()
            await process.communicate()


@pytest.fixture
async def processes(tmp_path: Path, settings: Settings) -> AsyncIterator[Processes]:
    """Starts programs."""
    made = Processes(tmp_path, settings)
    yield made
    await made.stop()


def counter(closed: asyncio.Event) -> Agent:
    """Streams numbers as fast as it may."""
    agent = Agent("alice")

    @agent.capability("numbers.count", description="Counts.", timeout_s=25)
    async def count(until: int) -> AsyncIterator[int]:
        try:
            for number in range(1, until + 1):
                yield number
        finally:
            closed.set()

    return agent


async def test_no_chunk_is_lost_or_doubled_when_the_broker_is_killed_again_and_again(
    bus: Bus, settings: Settings, server: NatsServer
) -> None:
    """REG-7: resume after a broker restart from the next chunk, by itself."""
    async with counter(asyncio.Event()).running(settings):
        stream = bus.stream("numbers.count", {"until": 3000})
        read: list[int] = []
        kills = {500, 1500, 2500}
        async for number in stream:
            read.append(number)
            if number in kills:
                await asyncio.to_thread(server.restart, signal.SIGKILL)
    assert read == list(range(1, 3001))
    assert stream.result is not None
    assert stream.result.meta["chunks"] == 3000


async def test_a_broker_that_dies_while_nobody_reads_loses_no_chunk_for_who_reads_later(
    bus: Bus, settings: Settings, server: NatsServer
) -> None:
    """REG-7: another reader goes on from the next chunk, after the work and the broker have ended."""
    closed = asyncio.Event()
    async with counter(closed).running(settings):
        stream = bus.stream("numbers.count", {"until": 60})
        async for number in stream:
            if number == 7:
                stream.leave()
                break
        await asyncio.wait_for(closed.wait(), 5)
    await asyncio.to_thread(server.restart, signal.SIGKILL)
    async with Bus.connect("tester", settings=settings) as other:
        rest = other.resume(stream.call_id, after=stream.next - 1)
        assert [number async for number in rest] == list(range(8, 61))
    assert rest.result is not None
    assert rest.result.meta["chunks"] == 60


async def test_a_callee_that_is_killed_cuts_the_stream_off_and_says_where(bus: Bus, processes: Processes) -> None:
    """REG-7: "cut off" is not "ended"."""
    callee = await processes.start("-m", "bus", "run", "callee:alice", "--log-level", "error")
    while not await bus.capabilities.find("numbers."):
        await asyncio.sleep(0.05)
    stream = bus.stream("numbers.count", {"until": 1000, "pause_s": 0.05})
    killed_at = 0.0

    async def read() -> None:
        nonlocal killed_at
        async for number in stream:
            if number == 5:
                callee.kill()
                killed_at = time.monotonic()

    with pytest.raises(ToolError, match="cut off") as lost:
        await read()
    assert time.monotonic() - killed_at < 4
    assert lost.value.info.code == "agent.unavailable"
    assert lost.value.info.details == {"next_chunk": stream.next, "started": True}
    assert stream.next > 5
    assert stream.result is None


async def test_a_reader_that_is_killed_ends_the_generator_unless_another_one_comes(
    bus: Bus, processes: Processes
) -> None:
    """REG-7: who goes away for good ends the work; who comes back in time goes on with the next chunk."""
    callee = await processes.start("-m", "bus", "run", "callee:alice", "--log-level", "error")
    while not await bus.capabilities.find("numbers."):
        await asyncio.sleep(0.05)
    reader = await processes.start(
        "reader.py" if False else str(Path(processes._environment["PYTHONPATH"].split(":")[1]) / "reader.py")
    )
    assert reader.stdout is not None
    call_id, last = "", 0
    while last < 20:
        call_id, number = (await reader.stdout.readline()).decode().split()
        last = int(number)
    reader.kill()
    rest = bus.resume(call_id, after=last)
    async for number in rest:
        assert number == last + 1
        last = number
        if last == 400:
            rest.leave()
            break
    assert callee.stdout is not None
    async with asyncio.timeout(10):
        assert await callee.stdout.readline() == b"closed\n"
    with pytest.raises(ToolError) as ended:
        await anext(bus.resume(call_id, after=10_000).__aiter__())
    assert ended.value.info.code == "tool.cancelled"
    assert ended.value.info.details["chunks"] >= 400


async def test_links_that_break_in_the_middle_of_a_message_lose_no_chunk(
    settings: Settings, server: NatsServer
) -> None:
    """REG-7: the same reader after a reconnect; and the callee's link."""
    async with Link(server.port) as theirs, Link(server.port) as ours:
        at_theirs, at_ours = (settings.model_copy(update={"servers": link.url}) for link in (theirs, ours))
        async with counter(asyncio.Event()).running(at_theirs), Bus.connect("tester", settings=at_ours) as bus:
            stream = bus.stream("numbers.count", {"until": 1500})
            read: list[int] = []
            async for number in stream:
                read.append(number)
                if number % 250 == 0:
                    (ours if number % 500 else theirs).cut(after_bytes=5000)
            assert ours.cuts >= 2
            assert theirs.cuts >= 2
    assert read == list(range(1, 1501))


async def test_a_paused_callee_is_waited_for(bus: Bus, processes: Processes) -> None:
    """REG-7: who may come back is not cut off."""
    callee = await processes.start("-m", "bus", "run", "callee:alice", "--log-level", "error")
    while not await bus.capabilities.find("numbers."):
        await asyncio.sleep(0.05)
    read = []
    async for number in bus.stream("numbers.count", {"until": 60, "pause_s": 0.01}):
        read.append(number)
        if number == 20:
            callee.send_signal(signal.SIGSTOP)
            await asyncio.sleep(3)
            callee.send_signal(signal.SIGCONT)
    assert read == list(range(1, 61))
