"""Pause and resume: what waits is parked and goes on where it was, once, in its order (WF-7)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from bus import Agent, Bus, Message, Settings
from bus.broker.stream_names import StreamNames
from bus.broker.streams import stream_state
from bus.testing import settled
from bus.workflow.decisions import Answer
from bus.workflow.story import State


async def parked(bus: Bus) -> int:
    names = StreamNames.of(bus.connection.settings.namespace)
    return (await stream_state(bus.connection, names.held)).messages


async def until_parked(bus: Bus, count: int) -> None:
    async with asyncio.timeout(10):
        while await parked(bus) != count:
            await asyncio.sleep(0.02)


async def test_a_paused_workflow_waits_and_goes_on(bus: Bus, settings: Settings) -> None:
    """WF-7: what is queued, scheduled and sent by what runs waits; after it, each runs once, as its first attempt."""
    ran: list[tuple[int, int]] = []
    began, ends = asyncio.Event(), asyncio.Event()
    agent = Agent("worker")

    @agent.on("step")
    async def step(payload: dict[str, int], message: Message) -> None:
        if payload["n"] == 0:
            began.set()
            await ends.wait()
            await message.send("worker", "step", {"n": 9})
        ran.append((payload["n"], message.attempt))

    async with agent.running(settings), agent.running(settings):
        workflow, neighbour = bus.workflow("job"), bus.workflow("neighbour")
        await workflow.send("worker", "step", {"n": 0})
        await asyncio.wait_for(began.wait(), 5)
        paused = await workflow.pause(reason="wait")
        assert paused.answer is Answer.DONE
        assert (await workflow.pause()).answer is Answer.ALREADY
        for number in range(1, 6):
            await workflow.send("worker", "step", {"n": number})
        await workflow.send("worker", "step", {"n": 6}, delay_s=1)
        await neighbour.send("worker", "step", {"n": 7})
        ends.set()
        await until_parked(bus, 7)
        await settled(bus)
        assert sorted(ran) == [(0, 1), (7, 1)]
        states = [one.state for one in (await bus.trace(workflow.id)).steps]
        assert sorted(states) == [State.HANDLED, *[State.PAUSED] * 7]
        record = await workflow.record()
        assert record is not None
        assert record.status == "paused"
        assert (await workflow.resume()).answer is Answer.DONE
        assert (await workflow.resume()).answer is Answer.NOTHING
        await until_parked(bus, 0)
        await settled(bus)
    assert sorted(ran) == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1), (9, 1)]
    assert {one.state for one in (await bus.trace(workflow.id)).steps} == {State.HANDLED}
    record = await workflow.record()
    assert record is not None
    assert record.status == "running"


async def test_the_order_of_a_partition_key_outlives_pauses(bus: Bus, settings: Settings) -> None:
    """WF-7, DEL-8: paused and resumed again and again while more comes; nothing lost, doubled or overtaken."""
    ran: list[int] = []
    agent = Agent("worker")

    @agent.on("step")
    async def step(payload: dict[str, int]) -> None:
        ran.append(payload["n"])
        await asyncio.sleep(0.002)

    async with agent.running(settings), agent.running(settings):
        workflow = bus.workflow("job")

        async def send(first: int) -> None:
            for number in range(first, first + 15):
                await workflow.send("worker", "step", {"n": number}, extensions={"partition_key": "k"})

        await send(0)
        for round in range(1, 5):
            await workflow.pause()
            await send(15 * round)
            if round % 2:
                await asyncio.sleep(0.1)
            await workflow.resume()
        await send(75)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(15):
                while len(ran) < 90:
                    await asyncio.sleep(0.02)
        await settled(bus)
        assert ran == list(range(90))
    assert await parked(bus) == 0


async def test_a_subtree_is_paused_and_its_siblings_go_on(bus: Bus, settings: Settings) -> None:
    """WF-7: below one message nothing begins, whoever sends it; the rest of the workflow does."""
    ran: list[str] = []
    agent = Agent("worker")

    @agent.on("root")
    async def root(_: Any, message: Message) -> None:
        for side in ("left", "right"):
            await message.send(
                "worker", "side", {"side": side}, message_id=f"{side}-{message.workflow_id}", delay_s=0.6
            )

    @agent.on("side")
    async def side(payload: dict[str, str], message: Message) -> None:
        ran.append(payload["side"])
        await message.send("worker", "leaf", payload)

    @agent.on("leaf")
    async def leaf(payload: dict[str, str]) -> None:
        ran.append(f"leaf {payload['side']}")

    async with agent.running(settings), agent.running(settings):
        workflow = bus.workflow("tree")
        await workflow.send("worker", "root", {})
        await settled(bus)
        await workflow.pause(f"left-{workflow.id}")
        await until_parked(bus, 1)
        async with asyncio.timeout(5):
            while "leaf right" not in ran:
                await asyncio.sleep(0.02)
        assert ran == ["right", "leaf right"]
        await workflow.resume(f"left-{workflow.id}")
        await until_parked(bus, 0)
        await settled(bus)
    assert sorted(ran) == ["leaf left", "leaf right", "left", "right"]


async def test_a_pause_outlives_every_process_and_a_cancel_ends_it(bus: Bus, settings: Settings) -> None:
    """WF-7: parked by one replica, sent again by one that starts later; cancelled while paused, it is set aside."""
    ran: list[int] = []
    agent = Agent("worker")

    @agent.on("step")
    async def step(payload: dict[str, int]) -> None:
        ran.append(payload["n"])

    going, ending = bus.workflow("going"), bus.workflow("ending")
    for number, workflow in enumerate((going, ending)):
        await workflow.send("worker", "step", {"n": number})
        await workflow.pause()
    async with agent.running(settings):
        await until_parked(bus, 2)
    await going.resume()
    await ending.cancel()
    assert await parked(bus) == 2
    async with agent.running(settings):
        await until_parked(bus, 0)
        await settled(bus)
    assert ran == [0]
    assert [one.state for one in (await bus.trace(ending.id)).steps] == [State.CANCELLED]
