"""Cancel on a real broker: always an end, heard where it runs, and further down (REG-8)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from bus import (
    Agent,
    Bus,
    BusError,
    Call,
    CallDraft,
    Settings,
)
from bus.calls.control import Presence, Verb, Word, presence
from bus.calls.tasks.record import TaskState
from tests.integration.desk import Desk


async def test_a_running_task_is_cancelled_in_its_capability(bus: Bus, settings: Settings) -> None:
    """REG-8: terminal at once, CancelledError where it runs, the same answer each time, success never after it."""
    desk = Desk()
    async with desk.agent.running(settings) as replica:
        task = await bus.submit("report.write", {"topic": "x"})
        waiting = asyncio.create_task(task.outcome(timeout_s=10))
        await desk.began.get()
        first = await task.cancel()
        assert (first.state, await task.cancel()) == (TaskState.CANCELLED, first)
        outcome = await waiting
        assert outcome.error is not None
        assert (outcome.error.code, outcome.error.details["by"]) == ("tool.cancelled", "tester")
        async with asyncio.timeout(5):
            while replica.in_flight:
                await asyncio.sleep(0.01)
        assert desk.ended == ["cancelled"]
        done = await bus.submit("report.quick", {"topic": "y"})
        await done.result(timeout_s=10)
        assert (await done.cancel()).state is TaskState.SUCCEEDED


async def test_work_that_does_not_hear_its_cancel_is_left_behind(
    bus: Bus, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REG-8: swallowed cancellations and plain functions neither keep the task alive nor its slot."""
    monkeypatch.setattr("bus.calls.tasks.runner.END_S", 0.2)
    monkeypatch.setattr("bus.calls.tasks.runner.ASK_AGAIN_S", 0.1)
    agent, began, release = Agent("mule", task_concurrency=1), asyncio.Event(), asyncio.Event()

    @agent.capability("mule.deaf", description="Does not listen.", long=True)
    async def deaf() -> str:
        began.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "success all the same"

    @agent.capability("mule.plain", description="Blocks a thread.", long=True)
    def plain() -> str:
        time.sleep(0.5)
        return "late"

    async with agent.running(settings) as replica:
        task = await bus.submit("mule.deaf", {})
        await began.wait()
        assert (await task.cancel()).state is TaskState.CANCELLED
        slow = await bus.submit("mule.plain", {})
        async for record in slow.follow():
            if record.state is TaskState.RUNNING:
                break
        assert (await slow.cancel()).state is TaskState.CANCELLED
        release.set()
        async with asyncio.timeout(5):
            while replica.in_flight:
                await asyncio.sleep(0.01)
        assert [(await one.status()).state for one in (task, slow)] == [TaskState.CANCELLED] * 2


async def test_a_cancel_travels_to_the_tasks_and_calls_below(bus: Bus, settings: Settings) -> None:
    """REG-8: two levels of tasks, a plain call below them, and nothing new can be begun below."""
    agent, desk, children = Agent("boss"), Desk(), asyncio.Queue[str]()
    refused: list[str] = []
    below = asyncio.Event()

    @agent.capability("boss.order", description="Has it done by others.", long=True)
    async def order(call: Call, depth: int) -> str:
        child = await call.submit("boss.order", {"depth": depth - 1}) if depth else None
        if child is not None:
            children.put_nowait(child.id)
        try:
            await call.call("report.slow", {}) if not child else await child.result()
        finally:
            try:
                await call.submit("report.quick", {"topic": "more"})
            except BusError as problem:
                refused.append(problem.info.code)
        return "done"

    @desk.agent.capability("report.slow", description="A plain call.", timeout_s=60)
    async def slow() -> None:
        below.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            children.put_nowait("call")
            raise

    async with agent.running(settings), desk.agent.running(settings):
        top = await bus.submit("boss.order", {"depth": 2})
        await asyncio.wait_for(below.wait(), 10)
        ids = [await children.get(), await children.get()]
        assert (await top.cancel()).state is TaskState.CANCELLED
        assert [(await bus.task(id).status()).state for id in ids] == [TaskState.CANCELLED] * 2
        assert await asyncio.wait_for(children.get(), 10) == "call"
        async with asyncio.timeout(10):
            while len(refused) < 3:
                await asyncio.sleep(0.01)
    assert set(refused) == {"tool.cancelled"}


async def test_a_cancel_travels_down_two_levels_of_plain_calls(bus: Bus, settings: Settings) -> None:
    """REG-8: the capability at the end hears it, and whoever still waits gets `tool.cancelled`."""
    low, high = Agent("low"), Agent("high")
    heard, began = list[str](), asyncio.Event()

    @low.capability("low.wait", description="Waits.", timeout_s=60)
    async def wait() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            heard.append("low")
            raise

    @high.capability("high.wait", description="Has others wait.", timeout_s=60)
    async def above(call: Call) -> None:
        try:
            await call.call("low.wait", {})
        except asyncio.CancelledError:
            heard.append("high")
            raise

    async with low.running(settings), high.running(settings):
        calling = asyncio.create_task(bus.call("high.wait", {}))
        await asyncio.wait_for(began.wait(), 10)
        calling.cancel()
        await asyncio.wait({calling})
        async with asyncio.timeout(5):
            while len(heard) < 2:
                await asyncio.sleep(0.01)
    assert heard == ["high", "low"]


async def test_a_cancelled_plain_call_is_answered_whether_it_runs_or_waits(bus: Bus, settings: Settings) -> None:
    """REG-8: both callers hear `tool.cancelled`, and only the sender of a call may cancel it."""
    agent, began, runs = Agent("alice", call_concurrency=1), asyncio.Event(), list[str]()

    @agent.capability("sleep.long", description="Sleeps.", timeout_s=60)
    async def long(name: str) -> None:
        runs.append(name)
        began.set()
        await asyncio.Event().wait()

    async with agent.running(settings), Bus.connect("stranger", settings=settings) as stranger:
        calls = [CallDraft("sleep.long", {"name": name}, id=name) for name in ("first", "second")]
        running = asyncio.create_task(bus.call_many(calls[:1]))
        await asyncio.wait_for(began.wait(), 10)
        queued = asyncio.create_task(bus.call_many(calls[1:]))
        async with asyncio.timeout(10):
            while await presence_of(bus, "second") is not Presence.HAS_IT:
                await asyncio.sleep(0.01)
        subjects = bus.connection.subjects
        for name in ("second", "first"):
            await stranger.connection.publish(
                subjects.control("alice", "all", "stranger"), Word(Verb.CANCEL, name).encode()
            )
        await stranger.connection.flush()
        assert [await presence_of(bus, name) for name in ("first", "second")] == [Presence.HAS_IT] * 2
        for name in ("second", "first"):
            await bus.connection.publish(subjects.control("alice", "all", "tester"), Word(Verb.CANCEL, name).encode())
        results = {**await asyncio.wait_for(running, 10), **await asyncio.wait_for(queued, 10)}
    assert {name: one.error.code for name, one in results.items() if one.error} == {
        "first": "tool.cancelled", "second": "tool.cancelled",
    }  # fmt: skip
    assert runs == ["first"]


async def presence_of(bus: Bus, call_id: str) -> Presence:
    """What the only replica of alice says of a call."""
    (offer,) = await bus.capabilities.find("sleep.long")
    return await presence(bus.connection, "alice", offer.instances[0], Word(Verb.ALIVE, call_id), sender="tester")


@pytest.fixture
async def two(settings: Settings) -> AsyncIterator[tuple[Desk, Desk]]:
    """Two replicas of one agent."""
    desks = Desk(), Desk()
    async with desks[0].agent.running(settings), desks[1].agent.running(settings):
        yield desks


async def test_a_cancel_finds_whichever_replica_runs_it(bus: Bus, two: tuple[Desk, Desk]) -> None:
    """REG-8: DEL-1, two replicas, tasks on both."""
    tasks = [await bus.submit("report.write", {"topic": str(n)}) for n in range(6)]
    async with asyncio.timeout(10):
        while two[0].runs + two[1].runs < 6:
            await asyncio.sleep(0.01)
    assert min(two[0].runs, two[1].runs) > 0
    await asyncio.gather(*(task.cancel() for task in tasks))
    async with asyncio.timeout(5):
        while len(two[0].ended) + len(two[1].ended) < 6:
            await asyncio.sleep(0.01)
    assert {*two[0].ended, *two[1].ended} == {"cancelled"}
