"""The link is cut and stalled in the middle of messages, the server stays up (DEL-5)."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Iterator

import pytest

from bus.testing import NatsServer
from tests.chaos.load import Chain, settings_for
from tests.link import Link

COUNT = 400

# nats-py leaves the writer of a connection that was cut while it was made to the collector, which complains.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <function StreamWriter.__del__:pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(autouse=True)
def _collect_what_nats_py_left() -> Iterator[None]:
    yield
    gc.collect()


@pytest.mark.timeout(90)
@pytest.mark.parametrize("seed", [1, 2])
async def test_a_link_that_is_cut_mid_message(seed: int, server: NatsServer) -> None:
    """Twelve cuts at random bytes of the stream, so also between an acknowledgement and its arrival."""
    chance, chain = random.Random(seed), Chain()
    async with Link(server.port) as link, chain.running(settings_for(link.url)) as bus:
        publishing = asyncio.create_task(chain.publish(bus, COUNT, pause_s=0.005))
        while not publishing.done() and link.cuts < 12:
            await asyncio.sleep(chance.uniform(0.1, 0.4))
            link.cut(after_bytes=chance.randint(1, 5000))
        await chain.check(bus, await publishing)
        assert link.cuts >= 5


@pytest.mark.timeout(90)
async def test_a_link_that_goes_silent(server: NatsServer) -> None:
    """Nothing passes for longer than the ack wait, then what waited arrives late and at once."""
    chain = Chain()
    async with Link(server.port) as link, chain.running(settings_for(link.url)) as bus:
        publishing = asyncio.create_task(chain.publish(bus, COUNT))
        while not chain.ended:
            await asyncio.sleep(0.01)
        link.stall()
        await asyncio.sleep(6)
        link.resume()
        await chain.check(bus, await publishing)


@pytest.mark.timeout(90)
async def test_a_link_that_is_down_for_a_while(server: NatsServer) -> None:
    """No connection is possible for some seconds."""
    chain = Chain()
    async with Link(server.port) as link, chain.running(settings_for(link.url)) as bus:
        publishing = asyncio.create_task(chain.publish(bus, COUNT))
        while not chain.ended:
            await asyncio.sleep(0.01)
        link.down()
        await asyncio.sleep(4)
        await link.up()
        await chain.check(bus, await publishing)
