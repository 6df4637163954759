"""Batches, payloads by reference and broadcasts, on a real server (DEL-8, DEL-9, DEL-10)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter
from typing import Any

import nats
import orjson
import pytest
from pydantic import BaseModel

from bus import Agent, Bus, BusError, Draft, Message, RetryLater, Settings
from bus.broker.streams import StreamNames, stream_state
from bus.broker.survey import agent_queues


async def emptied(bus: Bus) -> None:
    """Waits until nothing waits or is in flight for agents that ran."""
    while any(queue.waiting or queue.in_flight for queue in await agent_queues(bus.connection) if queue.replicas):
        await asyncio.sleep(0.02)


async def dead_letters(bus: Bus, count: int) -> list[Any]:
    while len(found := [dead async for dead in bus.dead_letters.list()]) < count:
        await asyncio.sleep(0.02)
    return found


class Report(BaseModel):
    """A payload that may be large."""

    text: str


# -- batches --


async def test_a_batch_is_stored_as_a_whole(bus: Bus, settings: Settings) -> None:
    """DEL-8: one call, every message stored when it returns, envelopes in the order of the drafts."""
    sent = await bus.send_many([Draft("worker", "job", {"n": n}) for n in range(300)], workflow_id="w")
    assert [one.payload["n"] for one in sent] == list(range(300))
    assert {one.workflow_id for one in sent} == {"w"}
    assert (await stream_state(bus.connection, StreamNames.of(settings.namespace).work)).messages == 300
    assert await bus.send_many([]) == []


async def test_a_batch_says_what_was_not_stored(bus: Bus, settings: Settings) -> None:
    """DEL-8: the others are stored; what follows a failed one under its partition key is not sent."""
    keyed = {"partition_key": "k"}
    delayed = {"partition_key": "k", "deliver_at": "2999-01-01T00:00:00Z"}
    drafts = [
        Draft("worker", "job", {"n": 0}),
        Draft("worker", "job", {"n": 1}, extensions=keyed),
        Draft("worker", "job", {"n": 2}, message_id="bad", extensions=delayed),
        Draft("worker", "job", {"n": 3}, extensions=keyed),
        Draft("worker", "job", {"n": 4}),
    ]
    with pytest.raises(BusError, match="2 of 5 messages were not stored, the first is number 2") as failed:
        await bus.send_many(drafts)
    told = failed.value.info.details["failed"]
    assert [one["index"] for one in told] == [2, 3]
    assert told[0]["message_id"] == "bad"
    assert told[0]["error"]["code"] == failed.value.info.code == "protocol.malformed"
    assert (await stream_state(bus.connection, StreamNames.of(settings.namespace).work)).messages == 3


async def test_a_batch_from_a_handler_is_the_same_when_it_runs_again(bus: Bus, settings: Settings) -> None:
    """DEL-7, DEL-8."""
    agent, ids = Agent("worker"), list[list[str]]()

    @agent.on("start")
    async def start(payload: Any, message: Message) -> None:
        sent = await message.send_many([Draft("sink", "part", {"n": n}) for n in range(5)])
        ids.append([one.message_id for one in sent])
        if message.attempt == 1:
            raise RetryLater(0.01)

    async with agent.running(settings):
        await bus.send("worker", "start", {})
        await emptied(bus)
    assert len(ids) == 2
    assert ids[0] == ids[1]
    (queue,) = [one for one in await agent_queues(bus.connection) if one.agent == "sink"]
    assert queue.waiting == 5


# -- by reference --


async def test_a_large_payload_travels_by_reference(bus: Bus, settings: Settings) -> None:
    """DEL-9: not on the wire, whole for the handler as a model; also beyond what the server takes as a message."""
    agent, got = Agent("worker"), asyncio.Queue[tuple[Report, Message]]()

    @agent.on("report")
    async def report(report: Report, message: Message) -> None:
        await got.put((report, message))

    async with agent.running(settings):
        sent = await bus.send("worker", "report", Report(text="ä" * 900_000))
        report_got, message = await got.get()
        await bus.send("worker", "report", Report(text="small"))
        assert (await got.get())[1].envelope.extensions == {}
        await emptied(bus)
    assert report_got.text == "ä" * 900_000
    assert message.envelope == sent
    stored = await bus.connection.jetstream().get_msg(StreamNames.of(settings.namespace).history, 1)
    wire = orjson.loads(stored.data or b"")
    content = orjson.dumps(sent.payload)
    assert wire["payload"] == {}
    assert wire["extensions"]["data_ref"] == f"sha256:{hashlib.sha256(content).hexdigest()};size_bytes={len(content)}"


async def test_a_retry_and_a_dead_letter_keep_the_reference(bus: Bus, settings: Settings) -> None:
    """DEL-9: each attempt gets the whole payload, and the dead letter has the bytes as they travelled."""
    agent, sizes = Agent("worker"), list[int]()

    @agent.on("report")
    async def report(report: Report) -> None:
        sizes.append(len(report.text))
        raise RetryLater(0.01)

    async with agent.running(settings.model_copy(update={"max_attempts": 2})):
        await bus.send("worker", "report", Report(text="x" * 300_000))
        (dead,) = await dead_letters(bus, 1)
    assert sizes == [300_000, 300_000]
    assert len(dead.data) < 2000
    assert dead.envelope().extensions["data_ref"].startswith("sha256:")


async def damage(bus: Bus, settings: Settings, how: str, sha256: str) -> None:
    js, bucket = bus.connection.jetstream(), StreamNames.of(settings.namespace).artifacts
    if how == "missing":
        await js.purge_stream(f"OBJ_{bucket}")
    else:
        info = await (await js.object_store(bucket)).get_info(sha256)
        await js.purge_stream(f"OBJ_{bucket}", subject=f"$O.{bucket}.C.{info.nuid}")
        await js.publish(f"$O.{bucket}.C.{info.nuid}", b"something else")


@pytest.mark.parametrize(
    ("how", "says"),
    [("missing", "names nothing that is stored"), ("damaged", "names damaged content"), ("foreign", "is not sha256:")],
)
async def test_what_cannot_be_restored_is_a_dead_letter(how: str, says: str, bus: Bus, settings: Settings) -> None:
    """DEL-9: a typed failure in the first attempt, and the handler never runs."""
    agent = Agent("worker")

    @agent.on("report")
    async def report(report: Any) -> None:
        raise AssertionError("without its payload")

    if how == "foreign":
        await bus.send("worker", "report", {}, extensions={"data_ref": "s3://bucket/key"})
    else:
        sent = await bus.send("worker", "report", Report(text="x" * 300_000))
        await damage(bus, settings, how, hashlib.sha256(orjson.dumps(sent.payload)).hexdigest())
    async with agent.running(settings):
        (dead,) = await dead_letters(bus, 1)
    assert (dead.code, dead.attempts, dead.details["path"]) == ("protocol.malformed", 1, "extensions.data_ref")
    assert says in dead.reason


async def test_a_payload_over_every_limit_is_refused(bus: Bus) -> None:
    """DEL-9: before anything is stored."""
    with pytest.raises(BusError, match="the limit is 67108864") as refused:
        await bus.send("worker", "report", {"text": "x" * (65 << 20)})
    assert refused.value.info.code == "protocol.too_large"


# -- broadcasts --


def listener(name: str, got: Counter[tuple[str, int]]) -> Agent:
    agent = Agent(name)

    @agent.on("plan_changed", broadcast=True)
    async def plan_changed(payload: dict[str, int], message: Message) -> None:
        got[name, payload["n"]] += 1

    @agent.on("other")
    async def other(payload: dict[str, int], message: Message) -> None:
        await message.send("*", "plan_changed", payload)

    return agent


async def test_every_agent_gets_a_broadcast_once(bus: Bus, settings: Settings) -> None:
    """DEL-10: two agents, one of them with two replicas; a type that nobody asked for reaches nobody."""
    got: Counter[tuple[str, int]] = Counter()
    async with contextlib.AsyncExitStack() as stack:
        for name in ("writer", "writer", "reviewer"):
            await stack.enter_async_context(listener(name, got).running(settings))
        for n in range(20):
            await bus.send("*", "plan_changed", {"n": n}, workflow_id="w" if n % 2 else None)
            await bus.send("*", "other", {"n": 1000})
        await bus.send("writer", "plan_changed", {"n": 50})
        await emptied(bus)
    expected = Counter({(name, n): 1 for name in ("writer", "reviewer") for n in range(20)})
    assert got == expected + Counter({("writer", 50): 1})


async def test_an_agent_does_not_hear_itself(bus: Bus, settings: Settings) -> None:
    """DEL-10."""
    got: Counter[tuple[str, int]] = Counter()
    async with listener("writer", got).running(settings), listener("reviewer", got).running(settings):
        await bus.send("writer", "other", {"n": 1})
        await emptied(bus)
    assert got == Counter({("reviewer", 1): 1})


async def test_a_broadcast_waits_for_an_agent_that_is_away(bus: Bus, settings: Settings) -> None:
    """DEL-10: an agent that has run before gets what was broadcast meanwhile, a new one does not."""
    got: Counter[tuple[str, int]] = Counter()
    async with listener("writer", got).running(settings):
        pass
    await bus.send("*", "plan_changed", {"n": 7})
    async with listener("writer", got).running(settings), listener("late", got).running(settings):
        await emptied(bus)
    assert got == Counter({("writer", 7): 1})


async def test_a_broadcast_that_fails_is_a_dead_letter_of_each_agent(bus: Bus, settings: Settings) -> None:
    """DEL-10: retried, then buried beside a dead letter of the same number in the other stream; nobody is told."""

    def failing(name: str) -> Agent:
        agent = Agent(name)

        @agent.on("plan_changed", broadcast=True)
        async def plan_changed(payload: Report, message: Message) -> None:
            raise RetryLater(0.01)

        return agent

    async with failing("writer").running(settings), failing("reviewer").running(settings):
        await bus.send("*", "plan_changed", {"text": 1})
        await bus.send("writer", "plan_changed", {"text": 1})
        dead = await dead_letters(bus, 3)
        await emptied(bus)
    assert sorted((one.agent, one.code, one.origin_seq) for one in dead) == [
        ("reviewer", "tool.validation_failed", 1),
        ("writer", "tool.validation_failed", 1),
        ("writer", "tool.validation_failed", 1),
    ]
    refusals = [one for one in await agent_queues(bus.connection) if one.agent == "tester"]
    assert [one.waiting for one in refusals] == [1]


async def test_a_forged_broadcast_is_refused(bus: Bus, settings: Settings) -> None:
    """DEL-10: the same checks as for any message."""
    got: Counter[tuple[str, int]] = Counter()
    stranger = await nats.connect(settings.servers)
    sent = await bus.send("*", "news", {})
    forged = sent.replace(type="plan_changed", message_id="forged").encode()
    async with listener("writer", got).running(settings):
        await stranger.jetstream().publish(f"{settings.namespace}.v1.event.mallory.-.plan_changed", forged)
        (dead,) = await dead_letters(bus, 1)
    await stranger.close()
    assert dead.code == "auth.unverified_sender"
    assert got == Counter()
