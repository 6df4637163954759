"""A full stream, a deleted consumer, slow and long handlers (DEL-5, DEL-6)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from typing import Any

import nats
import pytest

from bus import Agent, BrokerError, Bus, Envelope, Message
from bus.broker.streams import StreamNames
from bus.broker.subjects import key_lane
from bus.testing import Ledger, NatsServer, settled
from tests.chaos.load import Chain, settings_for

MIB = 1 << 20


async def test_a_full_stream_says_so_and_loses_nothing(server: NatsServer) -> None:
    """Back-pressure reaches the sender as `broker.full`; what was accepted is handled, then there is room again."""
    settings = settings_for(server.url, work_max_bytes=MIB)
    agent, accepted = Agent("worker"), list[Envelope]()

    @agent.on("job")
    async def job(payload: Any) -> None: ...

    async with Bus.connect("load", settings=settings) as bus:

        async def fill() -> None:
            for _ in range(200):
                accepted.append(await bus.send("worker", "job", {"text": "x" * 16_000}))

        with pytest.raises(BrokerError) as full:
            await fill()
        assert (full.value.info.code, full.value.info.retryable) == ("broker.full", True)
        assert 40 < len(accepted) < 70
        async with agent.running(settings):
            await settled(bus, 10)
            accepted.append(await bus.send("worker", "job", {"text": "again"}))
            await settled(bus, 10)
        ledger = await Ledger.read(bus, accepted=accepted)
        ledger.check()
        assert len(ledger.handled) == len(ledger.published) == len(accepted)


async def test_a_full_stream_reaches_a_handler_that_sends(server: NatsServer) -> None:
    """Its message is tried again until there is room."""
    settings = settings_for(server.url, work_max_bytes=MIB, max_attempts=100)
    first, last, attempts = Agent("first"), Agent("last"), list[int]()

    @first.on("job")
    async def job(payload: Any, message: Message) -> None:
        attempts.append(message.attempt)
        await message.send("last", "part", {"text": "y" * 60_000})

    @last.on("part")
    async def part(payload: Any) -> None: ...

    async with Bus.connect("load", settings=settings) as bus, first.running(settings):
        accepted = [await bus.send("first", "job", {"n": n}) for n in range(25)]
        while max(attempts, default=0) < 2:
            await asyncio.sleep(0.02)
        async with last.running(settings):
            await settled(bus, 20)
            ledger = await Ledger.read(bus, accepted=accepted)
            ledger.check()
            assert len(ledger.handled) == 50


@pytest.mark.timeout(60)
async def test_a_deleted_consumer_is_made_again(server: NatsServer) -> None:
    """Three times under load, of both agents."""
    chain, settings = Chain(), settings_for(server.url)
    stranger = await nats.connect(server.url)
    stream = StreamNames.of(settings.namespace).work
    async with chain.running(settings) as bus:
        publishing = asyncio.create_task(chain.publish(bus, 300, pause_s=0.01))
        for _ in range(3):
            await asyncio.sleep(0.6)
            for agent in ("first", "last"):
                await stranger.jetstream().delete_consumer(stream, agent)
        await chain.check(bus, await publishing)
    await stranger.close()


async def test_a_slow_handler_holds_up_nobody(server: NatsServer) -> None:
    """One slow and one blocking handler take a place each; the rest flows by."""
    settings = settings_for(server.url)
    agent, order = Agent("worker", concurrency=4), list[str]()

    @agent.on("slow")
    async def slow(payload: Any) -> None:
        await asyncio.sleep(2)
        order.append("slow")

    @agent.on("blocking")
    def blocking(payload: Any) -> None:
        time.sleep(2)
        order.append("slow")

    @agent.on("fast")
    async def fast(payload: Any) -> None:
        order.append("fast")

    async with Bus.connect("load", settings=settings) as bus, agent.running(settings):
        accepted = [await bus.send("worker", type, {}) for type in ["slow", "blocking"] + ["fast"] * 100]
        await settled(bus, 20)
        ledger = await Ledger.read(bus, accepted=accepted)
        ledger.check()
        assert order == ["fast"] * 100 + ["slow"] * 2
        assert not ledger.redelivered


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["quiet", "broker killed", "consumer deleted", "lane deleted"])
async def test_a_long_handler_runs_once_while_it_lives(how: str, server: NatsServer) -> None:
    """Six times its ack wait, while a second replica stands by, whatever happens to the broker meanwhile.

    A killed broker, and a consumer that was made again, deliver to the replica that stands by, as if for the first
    time: that one asks.
    """
    settings = settings_for(server.url, ack_wait_s=1)
    started = list[int]()

    def replica() -> Agent:
        agent = Agent("worker")

        @agent.on("long")
        async def long(payload: Any, message: Message) -> None:
            started.append(message.attempt)
            await asyncio.sleep(6)

        return agent

    async with contextlib.AsyncExitStack() as stack:
        bus = await stack.enter_async_context(Bus.connect("load", settings=settings))
        for _ in range(2):
            await stack.enter_async_context(replica().running(settings))
        extensions = {"partition_key": "k"} if how == "lane deleted" else {}
        sent = await bus.send("worker", "long", {}, extensions=extensions)
        while not started:
            await asyncio.sleep(0.01)
        if how == "broker killed":
            await asyncio.to_thread(server.restart, signal.SIGKILL)
        elif how != "quiet":
            consumer = f"worker@{key_lane('k')}" if extensions else "worker"
            await bus.connection.jetstream().delete_consumer(StreamNames.of(settings.namespace).work, consumer)
        await settled(bus, 20)
        ledger = await Ledger.read(bus, accepted=[sent])
        ledger.check()
    assert started == [1]
