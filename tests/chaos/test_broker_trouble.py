"""The broker is killed, restarted and paused under load: nothing is lost, nothing handled twice (DEL-5)."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter

import pytest

from bus import Agent, BrokerError, Bus, Message, Settings
from bus.broker.survey import agent_queues
from bus.testing import NatsServer

COUNT = 400


def settings_for(server: NatsServer) -> Settings:
    return Settings.load(servers=server.url, ack_wait_s=2, publish_timeout_s=25, work_max_bytes=32 << 20)


async def hurt(server: NatsServer, how: str) -> None:
    """Hurts the server and mends it."""
    if how == "pause":
        server.pause()
        await asyncio.sleep(7)
        server.resume()
        return
    await asyncio.to_thread(server.stop, signal.SIGKILL if how == "kill" else signal.SIGTERM)
    await asyncio.sleep(0.3)
    await asyncio.to_thread(server.start)


@pytest.mark.timeout(90)
@pytest.mark.parametrize("how", ["terminate", "kill", "pause"])
async def test_load_survives(how: str, server: NatsServer) -> None:
    """A chain of two agents under load; each message arrives once at its end."""
    settings = settings_for(server)
    first, last, ended = Agent("first"), Agent("last"), Counter[int]()

    @first.on("job")
    async def job(payload: dict[str, int], message: Message) -> None:
        await asyncio.sleep(0.005)
        await message.send("last", "part", payload)

    @last.on("part")
    async def part(payload: dict[str, int]) -> None:
        ended[payload["n"]] += 1

    async with Bus.connect("load", settings=settings) as bus, first.running(settings), last.running(settings):

        async def publish() -> None:
            for n in range(COUNT):
                await bus.send("first", "job", {"n": n})

        publishing = asyncio.create_task(publish())
        while not ended:
            await asyncio.sleep(0.01)
        await hurt(server, how)
        await publishing
        while len(ended) < COUNT:
            await asyncio.sleep(0.05)
        while any(queue.waiting or queue.in_flight for queue in await agent_queues(bus.connection)):
            await asyncio.sleep(0.05)
        dead = [one async for one in bus.dead_letters.list()]
    assert ended == Counter(range(COUNT))
    assert dead == []


async def test_sending_while_the_broker_is_away_waits(server: NatsServer) -> None:
    """A send begun while the broker is away is stored once it is back, once."""
    settings = settings_for(server)
    async with Bus.connect("load", settings=settings) as bus:
        await asyncio.to_thread(server.stop, signal.SIGKILL)
        sending = asyncio.create_task(bus.send("nobody", "job", {}))
        await asyncio.sleep(1)
        assert not sending.done()
        await asyncio.to_thread(server.start)
        await sending
        (queue,) = await agent_queues(bus.connection)
        assert queue.waiting == 1


async def test_sending_without_a_broker_fails_in_time(server: NatsServer) -> None:
    """The deadline of a send holds, and the error says what to do."""
    settings = settings_for(server).model_copy(update={"publish_timeout_s": 1.0})
    async with Bus.connect("load", settings=settings) as bus:
        await asyncio.to_thread(server.stop, signal.SIGKILL)
        with pytest.raises(BrokerError, match=r"within 1 s|no connection") as failed:
            await bus.send("nobody", "job", {})
        assert failed.value.info.code == "broker.unavailable"
