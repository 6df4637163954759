"""An old and a new build of one agent side by side, in processes of their own, under load (SCH-4, REG-9, DEL-6)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bus import Bus, Contracts, Envelope
from bus.testing import Ledger, NatsServer, settled
from tests.chaos.load import Workers, settings_for

OLD = """
from bus import Agent
from pydantic import BaseModel

worker = Agent("worker", concurrency=8)

class Job(BaseModel):
    __contract__ = "job@1.1"
    n: int
    label: str

@worker.on("job")
async def job(payload: Job) -> None:
    assert payload.label.startswith("job ")
"""
NEW = """
from bus import Agent
from pydantic import BaseModel

worker = Agent("worker", concurrency=8)

class Job(BaseModel):
    __contract__ = "job@2.0"
    number: int
    labels: list[str]

@worker.on("job")
async def job(payload: Job) -> None:
    assert all(label.startswith("job ") for label in payload.labels)

@worker.upcast("job", 1)
def several_labels(payload: dict) -> dict:
    return {"number": payload["n"], "labels": [payload["label"]]}
"""

down = Contracts()


@down.downcast("job", 2)
def one_label(payload: dict[str, Any]) -> dict[str, Any]:
    return {"n": payload["number"], "label": payload["labels"][0]}


async def send_old(bus: Bus, count: int) -> list[Envelope]:
    """What the old build of the sender writes, slowly enough to last for a rollout."""
    accepted = []
    for n in range(count):
        job = {"n": n, "label": f"job {n}"}
        accepted.append(await bus.send("worker", "job", job, extensions={"schema": "job@1.0"}))
        await asyncio.sleep(0.005)
    return accepted


async def send_new(bus: Bus, count: int) -> list[Envelope]:
    """What the new build of the sender writes."""
    accepted = []
    for n in range(count):
        job = {"number": n, "labels": [f"job {n}"]}
        accepted.append(await bus.send("worker", "job", job, extensions={"schema": "job@2.0"}))
        await asyncio.sleep(0.005)
    return accepted


async def rolled(old: Workers, new: Workers) -> None:
    """Two replicas of the old build, replaced one after another by two of the new one."""
    for one in list(old.running):
        await new.start()
        assert await old.stop(one) == 0


@pytest.mark.timeout(90)
async def test_readers_first(server: NatsServer, tmp_path: Path) -> None:
    """Old sender, old and new readers: the upcaster reads what is old, and nobody notices the rollout."""
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    async with (
        Workers(tmp_path / "old", server, OLD, ack_wait_s=30) as old,
        Workers(tmp_path / "new", server, NEW, ack_wait_s=30) as new,
        Bus.connect("load", settings=settings_for(server.url, ack_wait_s=30)) as bus,
    ):
        await old.start()
        await old.start()
        sending = asyncio.create_task(send_old(bus, 400))
        await rolled(old, new)
        accepted = await sending
        await settled(bus, 30)
        ledger = await Ledger.read(bus, accepted=accepted)
        ledger.check()
        assert (len(ledger.handled), ledger.dead, ledger.redelivered) == (400, frozenset(), frozenset())


@pytest.mark.timeout(90)
async def test_senders_in_the_middle_and_back_again(server: NatsServer, tmp_path: Path) -> None:
    """New and old senders while both builds read: what the old build cannot read reaches the new one.

    Then the rollout goes on, is taken back to one old replica beside the new ones, and ends. Nothing is lost, handled
    twice, or buried, although every second message can be read by one build only.
    """
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    async with (
        Workers(tmp_path / "old", server, OLD, ack_wait_s=30) as old,
        Workers(tmp_path / "new", server, NEW, ack_wait_s=30) as new,
        Bus.connect("old-load", settings=settings_for(server.url, ack_wait_s=30)) as old_bus,
        Bus.connect("new-load", settings=settings_for(server.url, ack_wait_s=30)) as new_bus,
    ):
        await old.start()
        await old.start()
        await new.start()
        sending = asyncio.gather(send_old(old_bus, 400), send_new(new_bus, 400))
        assert await old.stop(old.running[0]) == 0
        await new.start()
        await old.start()
        assert await old.stop(old.running[1]) == 0
        assert await old.stop(old.running[2]) == 0
        accepted = [envelope for sent in await sending for envelope in sent]
        await settled(new_bus, 30)
        ledger = await Ledger.read(new_bus, accepted=accepted)
        ledger.check()
        assert (len(ledger.handled), ledger.dead) == (800, frozenset())
        handed_over = sum(len(entry.runs) > 0 and entry.runs[0].attempt > 1 for entry in ledger.entries.values())
        assert handed_over > 0, "no message met the build that cannot read it, so this proves nothing"


@pytest.mark.timeout(90)
async def test_senders_first(server: NatsServer, tmp_path: Path) -> None:
    """New sender, old readers: cast down until every replica is new, then sent as it is."""
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    settings = settings_for(server.url, ack_wait_s=30)
    async with (
        Workers(tmp_path / "old", server, OLD, ack_wait_s=30) as old,
        Workers(tmp_path / "new", server, NEW, ack_wait_s=30) as new,
        Bus.connect("load", settings=settings, contracts=[down]) as bus,
    ):
        await old.start()
        await old.start()
        sending = asyncio.create_task(send_new(bus, 400))
        await rolled(old, new)
        accepted = await sending
        accepted += await send_new(bus, 20)
        await settled(bus, 30)
        ledger = await Ledger.read(bus, accepted=accepted)
        ledger.check()
        assert (len(ledger.handled), ledger.dead) == (420, frozenset())
        assert (accepted[0].schema, accepted[-1].schema) == ("job@1.0", "job@2.0")
