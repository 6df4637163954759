"""Workers are killed, stopped and hurried: only what they had in hand runs again (DEL-2, DEL-5, DEL-6)."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from bus import Bus, Envelope
from bus.testing import Ledger, NatsServer, settled
from tests.chaos.load import Workers, settings_for

WORKER = """
import asyncio, os
from pathlib import Path
from bus import Agent, Message

worker = Agent("worker", concurrency=4)

@worker.on("job")
async def job(payload: dict, message: Message) -> None:
    await asyncio.sleep(payload.get("takes_s", 0.05))

@worker.on("deadly_once")
async def deadly_once(payload: dict, message: Message) -> None:
    if message.attempt == 1:
        os._exit(9)

@worker.on("deadly")
async def deadly(payload: dict) -> None:
    os._exit(9)
"""


async def send_all(bus: Bus, count: int) -> list[Envelope]:
    return [await bus.send("worker", "job", {"n": n}) for n in range(count)]


@pytest.mark.timeout(60)
async def test_killed_workers_lose_and_double_nothing(server: NatsServer, tmp_path: Path) -> None:
    """Two of three replicas die in the middle; only what they had in hand is run again."""
    async with (
        Workers(tmp_path, server, WORKER) as workers,
        Bus.connect("load", settings=settings_for(server.url, ack_wait_s=1)) as bus,
    ):
        for _ in range(3):
            await workers.start()
        # Long enough that both die with something in hand, however fast the rest is.
        accepted = [await bus.send("worker", "job", {"takes_s": 0.3}) for _ in range(60)]
        for victim in workers.running[:2]:
            await asyncio.sleep(0.2)
            victim.send_signal(signal.SIGKILL)
        await settled(bus, 20)
        ledger = await Ledger.read(bus, accepted=accepted)
        ledger.check()
        assert len(ledger.handled) == 60
        assert 0 < len(ledger.redelivered) <= 2 * 4
        assert await workers.stop(workers.running[2]) == 0


@pytest.mark.timeout(60)
async def test_a_killed_handler_runs_again_and_is_counted(server: NatsServer, tmp_path: Path) -> None:
    """The second run sees that it is the second."""
    async with (
        Workers(tmp_path, server, WORKER) as workers,
        Bus.connect("load", settings=settings_for(server.url, ack_wait_s=1)) as bus,
    ):
        victim = await workers.start()
        sent = await bus.send("worker", "deadly_once", {})
        assert await asyncio.wait_for(victim.wait(), 10) == 9
        await workers.start()
        await settled(bus, 20)
        ledger = await Ledger.read(bus, accepted=[sent])
        ledger.check()
        (entry,) = ledger.entries.values()
        assert [run.attempt for run in entry.runs] == [2]


@pytest.mark.timeout(60)
async def test_a_rolling_restart_loses_and_doubles_nothing(server: NatsServer, tmp_path: Path) -> None:
    """SIGTERM one after another, each replaced, under load: not even a second attempt is needed."""
    async with (
        Workers(tmp_path, server, WORKER, ack_wait_s=30) as workers,
        Bus.connect("load", settings=settings_for(server.url, ack_wait_s=30)) as bus,
    ):
        for _ in range(3):
            await workers.start()
        sending = asyncio.create_task(send_all(bus, 300))
        for old in list(workers.running):
            await workers.start()
            assert await workers.stop(old) == 0
        await settled(bus, 30)
        ledger = await Ledger.read(bus, accepted=await sending)
        ledger.check()
        assert (len(ledger.handled), ledger.redelivered) == (300, frozenset())


@pytest.mark.timeout(60)
async def test_a_second_signal_hurries(server: NatsServer, tmp_path: Path) -> None:
    """The first waits for the handlers, the second hands them back at once; another replica takes them over."""
    async with (
        Workers(tmp_path, server, WORKER, ack_wait_s=30, grace_s=60) as workers,
        Bus.connect("load", settings=settings_for(server.url, ack_wait_s=30)) as bus,
    ):
        first = await workers.start()
        sent = await bus.send("worker", "job", {"takes_s": 3})
        await asyncio.sleep(0.5)
        first.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.5)
        assert first.returncode is None
        began = asyncio.get_running_loop().time()
        assert await workers.stop(first) == 0
        assert asyncio.get_running_loop().time() - began < 2
        assert any("handed back 1" in line for line in workers.lines)
        await workers.start()
        await settled(bus, 10)
        ledger = await Ledger.read(bus, accepted=[sent])
        ledger.check()
        assert len(ledger.redelivered) == 1


@pytest.mark.timeout(60)
async def test_a_third_signal_has_its_ordinary_effect(server: NatsServer, tmp_path: Path) -> None:
    """A handler that cannot be interrupted does not hold the process for ever."""
    source = "import time\nfrom bus import Agent\nworker = Agent('worker')\n"
    source += "@worker.on('job')\ndef job(payload: dict) -> None:\n    time.sleep(60)\n"
    async with (
        Workers(tmp_path, server, source, grace_s=60) as workers,
        Bus.connect("load", settings=settings_for(server.url, ack_wait_s=1)) as bus,
    ):
        process = await workers.start()
        await bus.send("worker", "job", {})
        await asyncio.sleep(0.5)
        assert await workers.stop(process, times=3) == -signal.SIGTERM
        (await Ledger.read(bus)).check()
