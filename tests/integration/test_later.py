"""Delayed messages, on a real server (DEL-8)."""

from __future__ import annotations

import asyncio
import signal
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import nats
import pytest

from bus import Agent, Bus, BusError, Message, Settings
from bus.broker.streams import StreamNames, has_schedules, stream_state
from bus.broker.survey import agent_queues
from bus.testing import NatsServer
from bus.workflow.sightings import Sighting

Got = asyncio.Queue[tuple[float, Message]]


def recorder(got: Got) -> Agent:
    agent = Agent("worker")

    @agent.on("job")
    async def job(payload: Any, message: Message) -> None:
        await got.put((time.time(), message))

    return agent


async def history(bus: Bus, workflow_id: str) -> list[Sighting]:
    since = datetime.now(UTC) - timedelta(hours=1)
    return [seen async for seen in bus.watch(workflow_id=workflow_id, since=since, follow=False)]


async def test_a_message_comes_at_its_time_and_once(bus: Bus, settings: Settings) -> None:
    """DEL-8: not before, soon after; sent twice it comes once; it is in the history only when it is real work."""
    got: Got = asyncio.Queue()
    at = datetime.now(UTC) + timedelta(seconds=1.2)
    async with recorder(got).running(settings):
        sent = await bus.send("worker", "job", {"n": 1}, workflow_id="w", extensions={"deliver_at": at})
        await bus.send("worker", "job", {"n": 1}, message_id=sent.message_id, extensions={"deliver_at": at})
        assert await history(bus, "w") == []
        arrived, message = await got.get()
        assert 0 <= arrived - at.timestamp() < 1
        assert (message.message_id, message.attempt, message.payload) == (sent.message_id, 1, {"n": 1})
        await asyncio.sleep(0.5)
        assert got.empty()
    (seen,) = await history(bus, "w")
    assert seen.envelope is not None
    assert seen.envelope.message_id == sent.message_id
    later = StreamNames.of(settings.namespace).later
    assert (await stream_state(bus.connection, later)).messages == 0


async def test_delay_s_and_a_time_that_has_passed(bus: Bus, settings: Settings) -> None:
    """DEL-8: a delay counts from now; what is due already goes at once."""
    got: Got = asyncio.Queue()
    async with recorder(got).running(settings):
        started = time.time()
        delayed = await bus.send("worker", "job", {}, delay_s=1)
        past = await bus.send("worker", "job", {}, delay_s=-5)
        first, second = await got.get(), await got.get()
    assert (first[1].message_id, second[1].message_id) == (past.message_id, delayed.message_id)
    assert second[0] - started >= 1


async def test_it_waits_for_an_agent_that_is_away(bus: Bus, settings: Settings) -> None:
    """DEL-8, OPS-5: what is due counts as waiting, what is not due does not."""
    await bus.send("worker", "job", {}, delay_s=0.5)
    assert await agent_queues(bus.connection) == []
    while not (queues := await agent_queues(bus.connection)):
        await asyncio.sleep(0.05)
    assert (queues[0].agent, queues[0].waiting, queues[0].replicas) == ("worker", 1, None)
    got: Got = asyncio.Queue()
    async with recorder(got).running(settings):
        await got.get()


async def test_a_delayed_reply_is_an_outcome_and_costs_no_other_message(bus: Bus, settings: Settings) -> None:
    """DEL-5: a reply is taken from the stream that it is in, where its number is its own."""
    agent = Agent("worker")

    @agent.on("job")
    async def job(payload: Any, message: Message) -> None:
        await message.reply("done", {}, delay_s=0.3)
        await asyncio.sleep(1)

    bystanders = [await bus.send("nobody", "job", {}) for _ in range(3)]
    async with agent.running(settings):
        outcome = await bus.outcome(await bus.send("worker", "job", {}), timeout_s=10)
    assert outcome.reply is not None
    assert outcome.reply.type == "done"
    (queue,) = [one for one in await agent_queues(bus.connection) if one.waiting]
    assert (queue.agent, queue.waiting) == ("nobody", len(bystanders))


async def test_a_restart_of_the_server_forgets_no_schedule(server: NatsServer) -> None:
    """DEL-8: killed before the time, the server delivers what came due meanwhile and what comes due later."""
    settings = Settings.load(servers=server.url, work_max_bytes=32 << 20, ack_wait_s=2)
    got: Got = asyncio.Queue()
    async with Bus.connect("tester", settings=settings) as bus, recorder(got).running(settings):
        started = time.time()
        first = await bus.send("worker", "job", {}, delay_s=1)
        second = await bus.send("worker", "job", {}, delay_s=5)
        await asyncio.to_thread(server.stop, signal.SIGKILL)
        await asyncio.sleep(1.5)
        await asyncio.to_thread(server.start)
        arrived = [await got.get(), await got.get()]
    assert [message.message_id for _, message in arrived] == [first.message_id, second.message_id]
    assert 5 <= arrived[1][0] - started < 8


async def test_who_schedules_cannot_borrow_a_name(bus: Bus, settings: Settings) -> None:
    """SEC: the target of a schedule is a header, which the broker's permissions do not see."""
    got: Got = asyncio.Queue()
    stranger = await nats.connect(settings.servers)
    genuine = await bus.send("elsewhere", "job", {})
    prefix = f"{settings.namespace}.v1"
    at = (datetime.now(UTC) + timedelta(seconds=0.3)).isoformat().replace("+00:00", "Z")
    async with recorder(got).running(settings):
        await stranger.jetstream().publish(
            f"{prefix}.later.worker.mallory.job.1",
            genuine.replace(to="worker").encode(),
            headers={"Nats-Schedule": f"@at {at}", "Nats-Schedule-Target": f"{prefix}.due.worker.tester.job"},
        )
        while not (dead := [one async for one in bus.dead_letters.list()]):
            await asyncio.sleep(0.02)
    await stranger.close()
    assert dead[0].code == "auth.unverified_sender"
    assert got.empty()


@pytest.mark.parametrize("rest", [{"to": "*"}, {"to": "worker", "partition_key": "k"}])
async def test_what_cannot_be_delayed_is_refused(rest: dict[str, str], bus: Bus) -> None:
    """DEL-8: an error at the send, never silence."""
    to = rest.pop("to")
    with pytest.raises(BusError, match="deliver_at is for one message to one agent") as refused:
        await bus.send(to, "job", {}, extensions=rest, delay_s=10)
    assert refused.value.info.code == "protocol.malformed"


def test_servers_that_cannot_delay() -> None:
    """DEL-8: schedules came with 2.12."""
    assert [has_schedules(v) for v in ("2.11.9", "2.12.0", "2.15.1", "2.12.0-RC.1", "3.0.0", "")] == [
        False, True, True, True, True, False,
    ]  # fmt: skip


@pytest.fixture
def older(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> Bus:
    """A bus whose server says that it is old; there is no old one to run here."""
    monkeypatch.setitem(bus.connection._client._server_info, "version", "2.11.4")
    return bus


async def test_an_older_server_is_an_error_at_the_send(older: Bus) -> None:
    """DEL-8."""
    with pytest.raises(BusError, match=r"deliver_at needs nats-server 2\.12 or newer, this one is 2\.11\.4"):
        await older.send("worker", "job", {}, delay_s=10)
    await older.send("worker", "job", {})
