"""Idempotency keys: the work is done once, whoever asks again and whichever replica hears it (TOOL-5, DEL-7)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bus import Agent, Bus, Message, Rejected, RetryLater, Settings, ToolError


async def test_a_repeated_key_gets_the_stored_result_from_every_replica(bus: Bus, settings: Settings) -> None:
    runs: list[str] = []

    def replica(name: str) -> Agent:
        agent = Agent("alice")

        @agent.capability("order.place", description="Orders.")
        async def place(item: str) -> str:
            runs.append(name)
            await asyncio.sleep(0.1)
            return f"{item} {len(runs)}"

        return agent

    async with replica("one").running(settings), replica("two").running(settings):
        together = await asyncio.gather(
            *(bus.call("order.place", {"item": "tea"}, idempotency_key="k1") for _ in range(12))
        )
        assert {one.data for one in together} == {"tea 1"}
        assert len(runs) == 1
        assert sum("replayed" in one.meta for one in together) == 11
        with pytest.raises(Rejected, match="other arguments"):
            await bus.call("order.place", {"item": "coffee"}, idempotency_key="k1")
    async with replica("three").running(settings):
        again = await bus.call("order.place", {"item": "tea"}, idempotency_key="k1")
    assert (again.data, again.meta["replayed"], len(runs)) == ("tea 1", True, 1)


async def test_the_key_of_a_failed_call_is_free_again(bus: Bus, settings: Settings) -> None:
    agent, runs = Agent("alice"), 0

    @agent.capability("order.place", description="Orders.")
    async def place() -> str:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise ValueError("out of tea")
        return "ordered"

    async with agent.running(settings):
        with pytest.raises(ToolError, match="out of tea"):
            await bus.call("order.place", idempotency_key="k")
        assert (await bus.call("order.place", idempotency_key="k")).data == "ordered"


async def test_a_handler_that_runs_again_asks_for_the_same_work(bus: Bus, settings: Settings) -> None:
    agent, orders, attempts, done = Agent("alice"), 0, 0, asyncio.Event()

    @agent.capability("order.place", description="Orders.")
    async def place() -> int:
        nonlocal orders
        orders += 1
        return orders

    shop = Agent("shop")

    @shop.on("buy")
    async def buy(payload: Any, message: Message) -> None:
        nonlocal attempts
        attempts += 1
        assert (await message.call("order.place", {})).data == 1
        if attempts == 1:
            raise RetryLater(0.01)
        done.set()

    async with agent.running(settings), shop.running(settings):
        await bus.send("shop", "buy", {})
        await asyncio.wait_for(done.wait(), 15)
    assert (orders, attempts) == (1, 2)
