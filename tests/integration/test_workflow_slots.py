"""Slots: a limit over all replicas, and a holder that lost its slot cannot act any more (WF-1)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from bus import Agent, Bus, Message, Settings, ToolError
from bus.broker.records import Records
from bus.broker.streams import StreamNames
from bus.testing import settled
from bus.workflow.handle import WorkflowHandle
from bus.workflow.phases import Phase, Phases

DEAD = orjson.dumps(
    {"id": "x", "by": "dead", "since": "2026-01-01T00:00:00Z", "phase": "draft", "key": "", "branch": 0, "token": 0}
)


def handle(bus: Bus, name: str, workflow_id: str = "w") -> WorkflowHandle:
    return WorkflowHandle(bus.connection, workflow_id, branch=0, writer=name)


def records(bus: Bus) -> Records:
    return Records(bus.connection, StreamNames.of(bus.connection.settings.namespace).workflows)


async def steal(bus: Bus, key: str = "w.slot.0.draft.=.0") -> None:
    """The slot expires, as for one who was stopped for too long."""
    assert await records(bus).take_away(key, ttl_s=1)


@pytest.mark.parametrize("limit", [1, 3])
async def test_no_more_than_the_limit_hold_a_slot(bus: Bus, limit: int) -> None:
    """WF-1: 12 ask at once; each gets one in the end, tokens grow."""
    inside = most = 0
    tokens: list[int] = []

    async def work(n: int) -> None:
        nonlocal inside, most
        async with handle(bus, f"h{n}").slot("draft", key="document 7", limit=limit) as slot:
            inside, most = inside + 1, max(most, inside + 1)
            tokens.append(slot.token)
            await asyncio.sleep(0.02)
            inside -= 1

    async with asyncio.timeout(20):
        await asyncio.gather(*map(work, range(12)))
    assert most == limit
    assert len(set(tokens)) == 12
    if limit == 1:
        assert tokens == sorted(tokens)


async def test_waiting_is_in_order_and_can_be_seen(bus: Bus) -> None:
    """WF-1: who asked first is served first, and both holder and waiters are in the bucket."""
    order: list[int] = []

    async def wait(n: int) -> None:
        async with handle(bus, f"h{n}").slot("draft"):
            order.append(n)

    async with handle(bus, "holder").slot("draft"):
        waiting = []
        for n in range(4):
            waiting.append(asyncio.create_task(wait(n)))
            await until(lambda n=n: notes(bus, n + 1))  # type: ignore[misc]
        assert [key async for key, _ in records(bus).entries("w.slot.>")] == ["w.slot.0.draft.=.0"]
    async with asyncio.timeout(10):
        await asyncio.gather(*waiting)
    assert order == [0, 1, 2, 3]
    assert await notes(bus, 0)


async def notes(bus: Bus, count: int) -> bool:
    return len([key async for key, _ in records(bus).entries("w.wait.>")]) == count


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(5):
        while not await condition():
            await asyncio.sleep(0.01)


async def test_a_slot_that_is_not_free_in_time_says_who_has_it(bus: Bus) -> None:
    """WF-1: waiting is bounded."""
    async with handle(bus, "holder").slot("draft", key="k"):
        with pytest.raises(ToolError, match="held by holder since") as caught:
            async with handle(bus, "late").slot("draft", key="k", timeout_s=0.2):
                pass
        assert caught.value.info.code == "agent.busy"
        assert caught.value.info.retryable
        async with handle(bus, "other").slot("draft", key="another"):
            pass
    assert await notes(bus, 0)


async def test_a_slot_is_free_at_once_after_its_holder_failed(bus: Bus) -> None:
    """WF-1: an exception gives it back."""
    with pytest.raises(KeyError):
        async with handle(bus, "holder").slot("draft", ttl_s=60):
            raise KeyError("x")
    async with asyncio.timeout(2), handle(bus, "next").slot("draft"):
        pass


async def test_a_crashed_holder_is_followed_after_the_lifetime(bus: Bus) -> None:
    """WF-1: a slot whose holder does not renew it is free after its TTL; a waiter that died holds nobody up."""
    await records(bus).write("w.slot.0.draft.=.0", DEAD, after=0, ttl_s=1)
    await records(bus).write("w.wait.0.draft.=.x", DEAD, after=0, ttl_s=2)
    async with asyncio.timeout(8), handle(bus, "next").slot("draft"):
        pass


async def test_a_slot_is_renewed_while_it_is_held(bus: Bus) -> None:
    """WF-1: longer than its TTL."""
    holder = handle(bus, "holder")
    async with holder.slot("draft", ttl_s=1):
        await asyncio.sleep(2.2)
        await holder.fence.confirm()


@pytest.mark.parametrize("is_taken", [True, False])
async def test_a_holder_that_lost_its_slot_writes_nothing(bus: Bus, is_taken: bool) -> None:
    """WF-1: fencing: documents, whether somebody has it now or nobody."""
    holder = handle(bus, "paused")
    with pytest.raises(ToolError, match="is lost") as caught:  # noqa: PT012
        async with holder.slot("draft", ttl_s=60) as slot:
            await holder.state.update("section", lambda _: {"by": "paused"})
            await steal(bus)
            if is_taken:
                async with handle(bus, "newer").slot("draft") as newer:
                    assert newer.token > slot.token
                    await newer_writes(bus, holder)
            else:
                with pytest.raises(ToolError, match="is lost: it has expired"):
                    await holder.state.update("section", lambda _: {"by": "too late"})
    assert caught.value.info.retryable
    document = await handle(bus, "reader").state.read("section")
    assert document == {"by": "newer" if is_taken else "paused"}


async def newer_writes(bus: Bus, paused: WorkflowHandle) -> None:
    await handle(bus, "newer").state.update("section", lambda _: {"by": "newer"})
    for write in (
        lambda: paused.state.update("section", lambda _: {"by": "too late"}),
        lambda: paused.state.write("fresh", {"by": "too late"}, after=0),
        paused.fence.confirm,
    ):
        with pytest.raises(ToolError, match="newer holds it since"):
            await write()


async def test_two_slots_fence_together(bus: Bus) -> None:
    """WF-1: what is written under two slots needs both."""
    holder = handle(bus, "holder")
    async with holder.slot("outer"):
        with pytest.raises(ToolError, match="is lost"):  # noqa: PT012
            async with holder.slot("draft"):
                for n in range(3):
                    await holder.state.update("d", lambda _, n=n: {"n": n})  # type: ignore[misc]
                await steal(bus)
                await holder.state.update("d", lambda _: {"n": 9})
        await holder.state.update("e", lambda _: {"n": 1})
    assert await holder.state.read("d") == {"n": 2}


async def test_a_handler_that_lost_its_slot_sends_and_stores_nothing(bus: Bus, settings: Settings) -> None:
    """WF-1: messages, artifacts and calls are refused; the message is tried again, not buried."""
    agent = Agent("writer")
    refused: list[str] = []

    @agent.on("draft")
    async def draft(_: Any, message: Message) -> None:
        async with message.slot("draft", key="d7", ttl_s=60):
            if message.attempt == 1:
                await records(bus).take_away(f"{message.workflow_id}.slot.0.draft.d7.0", ttl_s=1)
                for act in (
                    lambda: message.send("tester", "late", {}),
                    lambda: message.artifacts.put(b"late", name="x"),
                    lambda: message.call("late.call", {}),
                ):
                    try:
                        await act()
                    except ToolError as problem:
                        refused.append(problem.info.details["reason"])
                await message.state.update("late", lambda _: {})
            await message.send("tester", "done", {"attempt": message.attempt})

    async with agent.running(settings):
        workflow = bus.workflow("job", phases=Phases([Phase("draft", limit=1)]))
        await workflow.send("writer", "draft", {})
        await settled(bus)
    assert refused == ["slot_lost"] * 3
    steps = (await bus.trace(workflow.id)).steps
    assert [(one.envelope.type, one.envelope.payload) for one in steps][1:] == [("done", {"attempt": 2})]
    record = await workflow.record()
    assert record is not None
    assert record.phases["draft"].ended_at is None


async def test_a_slot_follows_the_declared_order_and_limit(bus: Bus) -> None:
    """WF-1."""
    workflow = bus.workflow("job", phases=Phases(["plan", Phase("draft", limit=2)]))
    await workflow.send("nobody", "x", {})
    with pytest.raises(ToolError, match="cannot begin"):
        async with workflow.slot("draft"):
            pass
    await workflow.enter("plan")
    await workflow.leave("plan")
    with pytest.raises(ValueError, match="declares a limit of 2"):
        async with workflow.slot("draft", limit=1):
            pass
    async with workflow.slot("draft"), handle(bus, "second", workflow.id).slot("draft"):
        with pytest.raises(ToolError, match="one of 2 slots"):
            async with handle(bus, "third", workflow.id).slot("draft", timeout_s=0.1):
                pass
