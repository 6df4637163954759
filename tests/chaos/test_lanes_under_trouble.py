"""Order and priority when the server is killed and workers come and go (DEL-5, DEL-8)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter
from typing import Any

import pytest

from bus import Agent, Bus, Draft, Message, RetryLater, Settings
from bus.broker.survey import agent_queues
from bus.testing import NatsServer

KEYS = 5
EACH = 30
KILLS = 2
CONCURRENCY = 4


@pytest.mark.timeout(90)
async def test_lanes_survive_the_server_and_the_replicas(server: NatsServer) -> None:
    """Two SIGKILLs of the server and a rolling restart: nothing lost, nothing run twice, each key in order."""
    settings = Settings.load(servers=server.url, ack_wait_s=2, grace_s=2, work_max_bytes=32 << 20, max_attempts=20)
    keyed: dict[str, list[int]] = {f"k{n}": [] for n in range(KEYS)}
    others: Counter[tuple[str, int]] = Counter()

    def replica() -> Agent:
        agent = Agent("worker", concurrency=CONCURRENCY)

        @agent.on("keyed")
        async def on_keyed(payload: dict[str, Any], message: Message) -> None:
            await asyncio.sleep(0.01)
            if payload["n"] % 7 == 3 and message.attempt == 1:
                raise RetryLater(0.05)
            keyed[payload["key"]].append(payload["n"])

        @agent.on("other")
        async def on_other(payload: dict[str, Any]) -> None:
            await asyncio.sleep(0.01)
            others[payload["priority"], payload["n"]] += 1

        return agent

    drafts = []
    for n in range(EACH):
        drafts += [Draft("worker", "keyed", {"key": key, "n": n}, extensions={"partition_key": key}) for key in keyed]
        for priority in ("high", "normal", "low"):
            payload = {"priority": priority, "n": n}
            drafts.append(Draft("worker", "other", payload, extensions={"priority": priority}))

    async with Bus.connect("load", settings=settings) as bus:
        async with contextlib.AsyncExitStack() as first:
            for _ in range(2):
                await first.enter_async_context(replica().running(settings))
            sending = asyncio.create_task(bus.send_many(drafts))
            for _ in range(KILLS):
                await asyncio.sleep(0.4)
                await asyncio.to_thread(server.stop, signal.SIGKILL)
                await asyncio.to_thread(server.start)
            await sending
            second = contextlib.AsyncExitStack()
            await second.enter_async_context(replica().running(settings))
        async with second:
            while any(queue.waiting or queue.in_flight for queue in await agent_queues(bus.connection)):
                await asyncio.sleep(0.05)
        assert [dead async for dead in bus.dead_letters.list()] == []
    assert keyed == {key: list(range(EACH)) for key in keyed}
    assert others == Counter((priority, n) for priority in ("high", "normal", "low") for n in range(EACH))
