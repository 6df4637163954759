"""The broker is killed, restarted and paused under load: nothing is lost, nothing handled twice (DEL-5)."""

from __future__ import annotations

import asyncio
import signal

import pytest

from bus import BrokerError, Bus
from bus.testing import NatsServer
from bus.testing.ledger import Ledger
from tests.chaos.load import Chain, settings_for

COUNT = 400
PAUSE_S = 7  # longer than the ack wait, the heartbeats and a publish attempt; `make soak` has longer ones


async def hurt(server: NatsServer, how: str) -> None:
    """Hurts the server and mends it."""
    if how == "pause":
        server.pause()
        await asyncio.sleep(PAUSE_S)
        server.resume()
        return
    await asyncio.to_thread(server.stop, signal.SIGKILL if how == "kill" else signal.SIGTERM)
    await asyncio.sleep(0.3)
    await asyncio.to_thread(server.start)


@pytest.mark.timeout(90)
@pytest.mark.parametrize("how", ["terminate", "kill", "pause"])
async def test_load_survives(how: str, server: NatsServer) -> None:
    """A chain of two agents under load; each message arrives once at its end."""
    chain = Chain()
    async with chain.running(settings_for(server.url)) as bus:
        publishing = asyncio.create_task(chain.publish(bus, COUNT))
        while not chain.ended:
            await asyncio.sleep(0.01)
        await hurt(server, how)
        await chain.check(bus, await publishing)


@pytest.mark.timeout(90)
async def test_a_broker_that_is_killed_again_and_again(server: NatsServer) -> None:
    """Five kills in a row, each as soon as the load flows again."""
    chain = Chain()
    async with chain.running(settings_for(server.url)) as bus:
        publishing = asyncio.create_task(chain.publish(bus, COUNT, pause_s=0.01))
        for _ in range(5):
            seen = len(chain.ended)
            while len(chain.ended) < min(seen + 20, COUNT):
                await asyncio.sleep(0.01)
            await asyncio.to_thread(server.restart, signal.SIGKILL)
        await chain.check(bus, await publishing)


async def test_sending_while_the_broker_is_away_waits(server: NatsServer) -> None:
    """A send begun while the broker is away is stored once it is back, once."""
    async with Bus.connect("load", settings=settings_for(server.url)) as bus:
        await asyncio.to_thread(server.kill)
        sending = asyncio.create_task(bus.send("nobody", "job", {}))
        await asyncio.sleep(1)
        assert not sending.done()
        await asyncio.to_thread(server.start)
        ledger = await Ledger.read(bus, accepted=[await sending])
        ledger.check()
        assert (len(ledger.waiting), len(ledger.published)) == (1, 1)


async def test_sending_without_a_broker_fails_in_time(server: NatsServer) -> None:
    """The deadline of a send holds, and the error says what to do."""
    async with Bus.connect("load", settings=settings_for(server.url, publish_timeout_s=1)) as bus:
        await asyncio.to_thread(server.kill)
        with pytest.raises(BrokerError, match=r"within 1 s|no connection") as failed:
            await bus.send("nobody", "job", {})
        assert failed.value.info.code == "broker.unavailable"
