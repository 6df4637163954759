"""A delivery's word for being the first, when it is in doubt (DEL-2)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import orjson
import pytest

from bus import Agent, Bus, Message, Settings
from bus.broker.provisioning import provision
from bus.broker.store import store
from bus.delivery import peers
from bus.delivery.dedupe import Claim, Dedupe, digest
from bus.testing import NatsServer
from bus.workflow import completions
from bus.workflow.completions import Completion, Presence

COUNT = 100


def key(n: int) -> bytes:
    return digest("tester", f"m{n}")


async def record(bus: Bus, n: int) -> None:
    done = Completion("tester", f"m{n}", None, 1, datetime.now(UTC), 1.0)
    await store(bus.connection, bus.connection.subjects.done("worker"), completions.encode([done]), {}, timeout_s=5)


@contextlib.asynccontextmanager
async def replicas(bus: Bus, count: int) -> AsyncIterator[list[Dedupe]]:
    started = [Dedupe(bus.connection, "worker") for _ in range(count)]
    try:
        for one in started:
            await one.start()
        yield started
    finally:
        for one in started:
            await one.stop()


async def test_copies_are_recognised_the_moment_they_are_recorded(bus: Bus) -> None:
    """What another replica completed a moment ago is known to each claim, not only to the first after the doubt."""
    async with replicas(bus, 2) as (other, one):
        for n in range(COUNT):
            assert await other.claim(key(n), seq=n + 1, redelivered=False) is Claim.TAKEN
        one.suspect_copies()
        claims = []
        for n in range(COUNT):
            await record(bus, n)
            other.complete(key(n))
            claims.append(await one.claim(key(n), seq=n + 1, redelivered=False))
    assert claims == [Claim.COMPLETED] * COUNT


@pytest.mark.parametrize("how", ["redelivery", "new consumer"])
async def test_what_a_peer_has_in_hand_is_held(how: str, bus: Bus) -> None:
    """Until it is completed or given back; the question is one for all that wait."""
    async with replicas(bus, 3) as (first, second, third):
        for n in range(COUNT):
            await (first if n % 2 else second).claim(key(n), seq=n + 1, redelivered=False)
        if how == "new consumer":
            third.suspect_copies()

        async def claim(n: int) -> Claim:
            return await third.claim(key(n), seq=n + 1, redelivered=how == "redelivery")

        assert await asyncio.gather(*map(claim, range(COUNT))) == [Claim.HELD] * COUNT
        first.release(key(1))
        assert await claim(1) is Claim.TAKEN


async def test_the_word_is_doubted_long_after_a_broker_forgot(bus: Bus) -> None:
    """A replica whose hands were full gets what the broker forgot only when one is free, however late that is."""
    async with replicas(bus, 2) as (holder, other):
        await holder.claim(key(7), seq=7, redelivered=False)
        other.suspect_copies()
        assert await other.claim(key(1), seq=1, redelivered=False) is Claim.TAKEN
        assert other._doubts == other._resolved_doubts
        assert await other.claim(key(7), seq=7, redelivered=False) is Claim.HELD


async def test_of_those_who_ask_at_once_one_runs(bus: Bus) -> None:
    """Four replicas are given the same messages; each is taken by exactly one."""
    taken = Counter[int]()
    async with replicas(bus, 4) as started:

        async def claim(one: Dedupe, n: int) -> None:
            found = await one.claim(key(n), seq=n + 1, redelivered=True)
            taken[n] += found is Claim.TAKEN

        await asyncio.gather(*(claim(one, n) for n in range(COUNT) for one in started))
    assert taken == Counter(range(COUNT))


async def test_a_lonely_replica_waits_for_nobody(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when others ran before it: they have left in good order."""
    async with replicas(bus, 2):
        pass
    monkeypatch.setattr(peers, "ASK_AGAIN_S", 100)
    async with replicas(bus, 1) as (one,):
        async with asyncio.timeout(2):
            assert await one.claim(key(1), seq=1, redelivered=True) is Claim.TAKEN


async def test_a_dead_replica_is_waited_for_once(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """It left nothing but the record that it began; the next to start need not wait for it."""
    monkeypatch.setattr(peers, "ASK_AGAIN_S", 0.02)
    subject = bus.connection.subjects.done("worker")
    await store(bus.connection, subject, completions.encode_presence(Presence("dead", "running")), {}, timeout_s=5)
    async with replicas(bus, 1) as (one,):
        assert one._peers._known == {"dead"}
        assert await one.claim(key(1), seq=1, redelivered=False) is Claim.TAKEN
        assert one._peers._known == set()
    async with replicas(bus, 1) as (one,):
        assert one._peers._known == set()


async def test_a_replica_that_was_given_up_too_early_says_so(bus: Bus) -> None:
    """It reads that it is taken for dead, and is known again."""
    async with replicas(bus, 2) as (first, second):
        subject, name = bus.connection.subjects.done("worker"), first._peers.replica
        assert second._peers._known == {name}
        await store(bus.connection, subject, completions.encode_presence(Presence(name, "silent")), {}, timeout_s=5)
        async with asyncio.timeout(5):
            async with replicas(bus, 1) as (third,):
                while name not in third._peers._known or name not in second._peers._known:
                    await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"7", b'{"replica": "x"}', b'{"replica": "x", "given": "y"}', b'{"replica":"x","given":1,"digests":7}']
    + [orjson.dumps({"replica": "x", "given": 1, "digests": wrong}) for wrong in ([1], ["zz"], {"a": 1})],
)
async def test_what_a_stranger_says_to_peers_ends_nothing(data: bytes, bus: Bus) -> None:
    """Everybody on the broker may publish there: what is no question is ignored, and the replica goes on."""
    async with replicas(bus, 2) as (holder, other):
        await holder.claim(key(1), seq=1, redelivered=False)
        await bus.connection.publish(bus.connection.subjects.claims("worker"), data)
        assert await other.claim(key(1), seq=1, redelivered=True) is Claim.HELD


async def test_silence_is_counted_over_questions_that_broke_off(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links that are cut again and again do not make a dead replica immortal."""
    monkeypatch.setattr(peers, "ASK_AGAIN_S", 0.05)
    subject = bus.connection.subjects.done("worker")
    await store(bus.connection, subject, completions.encode_presence(Presence("dead", "running")), {}, timeout_s=5)
    async with replicas(bus, 1) as (one,), asyncio.timeout(20):
        while "dead" in one._peers._known:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(one._peers.ask([key(1)]), 0.4)


async def test_what_has_not_begun_is_left_when_the_link_breaks(bus: Bus, settings: Settings) -> None:
    """Nobody can hear of it from this replica, and a broker that was killed gives it to another one."""
    agent, got = Agent("worker"), list[int]()

    @agent.on("job")
    async def job(payload: dict[str, int], message: Message) -> None:
        got.append(message.attempt)

    async with agent.running(settings) as replica:
        consumer = replica._consumers[0]
        limit, consumer._workers._limit = consumer._workers._limit, 0
        await bus.send("worker", "job", {})
        async with asyncio.timeout(20):
            while not replica.in_flight:
                await asyncio.sleep(0.01)
            await consumer._connection._client.force_reconnect()
            while replica.in_flight:
                await asyncio.sleep(0.01)
            consumer._workers._limit = limit
            while not got:
                await asyncio.sleep(0.01)
    assert got == [2]


async def test_only_a_server_that_was_started_anew_is_doubted(server: NatsServer) -> None:
    """Another link to the same server means reading what was completed meanwhile, and no question."""
    async with Bus.connect("tester", servers=server.url) as bus:
        await provision(bus.connection)
        async with replicas(bus, 1) as (one,):
            await one.claim(key(1), seq=1, redelivered=False)
            doubts, epoch = one._doubts, bus.connection.epoch
            await bus.connection._client.force_reconnect()
            while bus.connection.epoch == epoch:
                await asyncio.sleep(0.01)
            assert (one._doubts, one._breaks - one._caught_up_breaks) == (doubts, 1)
            assert await one.claim(key(2), seq=2, redelivered=False) is Claim.TAKEN
            assert one._breaks == one._caught_up_breaks
            epoch = bus.connection.epoch
            await asyncio.to_thread(server.restart, signal.SIGKILL)
            while bus.connection.epoch == epoch:
                await asyncio.sleep(0.01)
            assert one._doubts == doubts + 1
