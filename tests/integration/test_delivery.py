"""Delivery from send to settlement, on a real server (DEL-1 to DEL-7, ENV-3, ENV-4)."""

from __future__ import annotations

import asyncio
from typing import Any

import nats
import orjson
import pytest
from pydantic import BaseModel

from bus import Agent, Bus, DeadLetter, Message, PermanentFailure, RetryLater, Settings
from bus.broker.survey import agent_queues


class Order(BaseModel):
    """What the test's handlers take."""

    number: int


async def settled_dead_letters(bus: Bus, count: int) -> list[DeadLetter]:
    """Waits until there are `count` dead letters."""
    while True:
        found = [dead async for dead in bus.dead_letters.list()]
        if len(found) >= count:
            return found
        await asyncio.sleep(0.02)


async def emptied(bus: Bus) -> None:
    """Waits until nothing waits or is in flight for agents that have a consumer."""
    while any(queue.waiting or queue.in_flight for queue in await agent_queues(bus.connection) if queue.replicas):
        await asyncio.sleep(0.02)


async def test_a_message_reaches_its_handler_as_a_model(bus: Bus, settings: Settings) -> None:
    """DEL-1."""
    agent, got = Agent("worker"), asyncio.Queue[tuple[Order, Message]]()

    @agent.on("order", phase="execute")
    async def handle(order: Order, message: Message) -> None:
        await got.put((order, message))

    async with agent.running(settings):
        sent = await bus.send("worker", "order", {"number": 7}, workflow_id="wf")
        order, message = await got.get()
        await emptied(bus)
    assert order == Order(number=7)
    assert (message.message_id, message.sender, message.workflow_id, message.attempt, message.phase) == (
        sent.message_id,
        "tester",
        "wf",
        1,
        "execute",
    )


async def test_plain_functions_and_plain_payloads(bus: Bus, settings: Settings) -> None:
    """A `def` runs in a thread; without a model the payload comes as JSON."""
    agent, got = Agent("worker"), asyncio.Queue[Any]()
    loop = asyncio.get_running_loop()

    @agent.on("note")
    def handle(payload: Any) -> None:
        loop.call_soon_threadsafe(got.put_nowait, payload)

    async with agent.running(settings):
        await bus.send("worker", "note", ["any", {"json": None}])
        assert await got.get() == ["any", {"json": None}]


async def test_the_same_message_twice_is_handled_once(bus: Bus, settings: Settings) -> None:
    """DEL-2: a publisher's retry is stored once, and a copy that a stranger stores again is a duplicate."""
    agent, handled = Agent("worker"), []

    @agent.on("order")
    async def handle(order: Order) -> None:
        handled.append(order.number)

    async with agent.running(settings):
        sent = await bus.send("worker", "order", {"number": 1})
        await bus.send("worker", "order", {"number": 1}, message_id=sent.message_id)
        await emptied(bus)
        stranger = await nats.connect(settings.servers)
        subject = f"{settings.namespace}.v1.work.worker.normal.tester.order"
        await stranger.jetstream().publish(subject, sent.encode())
        await bus.send("worker", "order", {"number": 2})
        await emptied(bus)
        await stranger.close()
    assert handled == [1, 2]


async def test_a_completion_outlives_the_replica(bus: Bus, settings: Settings) -> None:
    """DEL-2: a new replica knows what an earlier one has completed."""
    handled = []

    def replica() -> Agent:
        agent = Agent("worker")

        @agent.on("order")
        async def handle(order: Order) -> None:
            handled.append(order.number)

        return agent

    async with replica().running(settings):
        sent = await bus.send("worker", "order", {"number": 1})
        await emptied(bus)
    async with replica().running(settings):
        stranger = await nats.connect(settings.servers)
        await stranger.jetstream().publish(f"{settings.namespace}.v1.work.worker.low.tester.order", sent.encode())
        await emptied(bus)
        await stranger.close()
    assert handled == [1]


GOOD = {"version": "1.2", "message_id": "m", "trace_id": "t", "from": "stranger", "to": "worker", "type": "order"}

POISON: dict[str, tuple[bytes, str]] = {
    "garbage": (b"\xff\xfe garbage", "protocol.malformed"),
    "empty": (b"", "protocol.malformed"),
    "empty object": (b"{}", "protocol.malformed"),
    "array": (b"[]", "protocol.malformed"),
    "deep": (b"[" * 100_000, "protocol.malformed"),
    "version 7.0": (orjson.dumps({**GOOD, "version": "7.0"}), "protocol.unsupported_version"),
    "wrong payload": (orjson.dumps({**GOOD, "payload": {"number": "many"}}), "tool.validation_failed"),
    "forged sender": (orjson.dumps({**GOOD, "from": "boss"}), "auth.unverified_sender"),
    "other type": (orjson.dumps({**GOOD, "type": "invoice"}), "protocol.malformed"),
    "expired": (
        orjson.dumps({**GOOD, "extensions": {"expires_at": "2020-01-01T00:00:00Z"}}),
        "protocol.expired",
    ),
    "circle": (orjson.dumps({**GOOD, "extensions": {"hops": 5000}}), "protocol.loop"),
}


@pytest.mark.parametrize("name", POISON)
async def test_poison_is_a_dead_letter_and_never_blocks(name: str, bus: Bus, settings: Settings) -> None:
    """DEL-4, ENV-3: bytes kept, code right, the good message behind it is handled, the sender hears."""
    data, code = POISON[name]
    agent, handled = Agent("worker", concurrency=1), asyncio.Queue[int]()

    @agent.on("order")
    async def handle(order: Order) -> None:
        await handled.put(order.number)

    stranger = await nats.connect(settings.servers)
    js = stranger.jetstream()
    subject = f"{settings.namespace}.v1.work.worker.normal.stranger.order"
    await js.publish(subject, data, headers={"X-Note": "kept"})
    await js.publish(subject, orjson.dumps({**GOOD, "message_id": "good", "payload": {"number": 3}}))
    async with agent.running(settings):
        assert await handled.get() == 3
        (dead,) = await settled_dead_letters(bus, 1)
        await emptied(bus)
    assert (dead.data, dead.code, dead.agent, dead.attempts) == (data, code, "worker", 1)
    assert dead.origin_subject == subject
    assert dead.headers["X-Note"] == "kept"
    answer = await js.get_last_msg(
        f"{settings.namespace.upper()}_WORK", f"{settings.namespace}.v1.work.stranger.normal.worker.error"
    )
    told = orjson.loads(answer.data or b"")
    assert told["payload"]["error"]["code"] == code
    assert told["status"] == "error"
    await stranger.close()


async def test_unknown_type_names_the_types(bus: Bus, settings: Settings) -> None:
    """DEL-4."""
    agent = Agent("worker")

    @agent.on("order")
    async def handle(order: Order) -> None:
        raise AssertionError("not for this type")

    async with agent.running(settings):
        await bus.send("worker", "invoice", {})
        (dead,) = await settled_dead_letters(bus, 1)
    assert dead.code == "protocol.no_handler"
    assert dead.details["handles"] == ["order"]


async def test_a_message_over_the_header_room_is_kept_whole(bus: Bus, settings: Settings) -> None:
    """DEL-4: a message as large as the server takes leaves no room for the dead letter's headers."""
    agent = Agent("worker")
    data = b"x" * (1024 * 1024)
    stranger = await nats.connect(settings.servers)
    await stranger.jetstream().publish(f"{settings.namespace}.v1.work.worker.normal.stranger.order", data)
    await stranger.close()
    async with agent.running(settings):
        (dead,) = await settled_dead_letters(bus, 1)
    assert dead.data == data
    assert dead.code == "protocol.malformed"


async def test_retry_by_advice(bus: Bus, settings: Settings) -> None:
    """DEL-3: `RetryLater` is tried again after its delay and counted; `PermanentFailure` and bugs are not."""
    agent, attempts = Agent("worker"), []

    @agent.on("busy")
    async def busy(payload: Any, message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt < 3:
            raise RetryLater(0.01, "come back")

    @agent.on("never")
    async def never(payload: Any) -> None:
        raise PermanentFailure("cannot be done")

    @agent.on("bug")
    async def bug(payload: Any) -> None:
        raise KeyError("missing")

    async with agent.running(settings):
        for type in ("busy", "never", "bug"):
            await bus.send("worker", type, {})
        dead = await settled_dead_letters(bus, 2)
        await emptied(bus)
    assert attempts == [1, 2, 3]
    assert {(one.code, one.attempts) for one in dead} == {("tool.execution_failed", 1)}
    assert {one.reason for one in dead} == {"cannot be done", "KeyError: 'missing'"}


async def test_retries_end(bus: Bus, settings: Settings) -> None:
    """DEL-3: after `max_attempts` a retryable failure is a dead letter too."""
    agent = Agent("worker")

    @agent.on("busy")
    async def busy(payload: Any) -> None:
        raise RetryLater(0.0, "always")

    async with agent.running(settings.model_copy(update={"max_attempts": 2})):
        await bus.send("worker", "busy", {})
        (dead,) = await settled_dead_letters(bus, 1)
    assert dead.attempts == 2


async def test_long_handlers_are_not_redelivered(bus: Bus, settings: Settings) -> None:
    """DEL-6: three times the ack wait in the handler, a second replica stands by, and it runs once."""
    runs, ended = [], asyncio.Event()

    def replica() -> Agent:
        agent = Agent("worker")

        @agent.on("slow")
        async def slow(payload: Any) -> None:
            runs.append(1)
            await asyncio.sleep(3.5)
            ended.set()

        return agent

    short = settings.model_copy(update={"ack_wait_s": 1.0})
    async with replica().running(short), replica().running(short):
        await bus.send("worker", "slow", {})
        await ended.wait()
        await emptied(bus)
    assert runs == [1]


async def test_stopping_hands_back_what_does_not_finish(bus: Bus, settings: Settings) -> None:
    """DEL-6: the message of a handler that outlasts the grace runs at once on another replica."""
    runs, started, finished = [], asyncio.Event(), asyncio.Event()

    def replica(seconds: float) -> Agent:
        agent = Agent("worker")

        @agent.on("slow")
        async def slow(payload: Any, message: Message) -> None:
            runs.append(message.attempt)
            started.set()
            await asyncio.sleep(seconds)
            finished.set()

        return agent

    patient = settings.model_copy(update={"ack_wait_s": 60.0, "grace_s": 0.2})
    async with replica(60).running(patient):
        await bus.send("worker", "slow", {})
        await started.wait()
    async with replica(0).running(patient):
        async with asyncio.timeout(5):
            await finished.wait()
        await emptied(bus)
    assert runs == [1, 2]


async def test_a_handler_that_runs_again_sends_the_same_ids(bus: Bus, settings: Settings) -> None:
    """DEL-7: what the first, failed run sent is not doubled by the second."""
    worker, sink, got = Agent("worker"), Agent("sink"), []

    @worker.on("job")
    async def job(payload: Any, message: Message) -> None:
        await message.send("sink", "part", {"n": 1})
        await message.send("sink", "part", {"n": 2}, key="two")
        if message.attempt == 1:
            raise RetryLater(0.0)
        await message.send("sink", "part", {"n": 3})

    @sink.on("part")
    async def part(payload: Any, message: Message) -> None:
        assert message.envelope.hops == 1
        got.append(payload["n"])

    async with worker.running(settings), sink.running(settings):
        await bus.send("worker", "job", {})
        while len(got) < 3:
            await asyncio.sleep(0.02)
        await emptied(bus)
    assert sorted(got) == [1, 2, 3]


async def test_equal_ids_of_two_senders_are_two_messages(settings: Settings) -> None:
    """DEL-2, DEL-7: a message is identified by sender and id, and so is what it causes."""
    worker, sink, got = Agent("worker"), Agent("sink"), []

    @worker.on("job")
    async def job(payload: Any, message: Message) -> None:
        await message.send("sink", "part", {"of": message.sender})

    @sink.on("part")
    async def part(payload: Any) -> None:
        got.append(payload["of"])

    async with worker.running(settings), sink.running(settings):
        for sender in ("left", "right"):
            async with Bus.connect(sender, settings=settings) as bus:
                await bus.send("worker", "job", {}, message_id="m1")
        while len(got) < 2:
            await asyncio.sleep(0.02)
    assert sorted(got) == ["left", "right"]


async def test_replicas_share_the_work(bus: Bus, settings: Settings) -> None:
    """DEL-1: every message once, over three replicas."""
    handled: list[int] = []

    def replica() -> Agent:
        agent = Agent("worker", concurrency=4)

        @agent.on("order")
        async def handle(order: Order) -> None:
            await asyncio.sleep(0.001)
            handled.append(order.number)

        return agent

    async with replica().running(settings), replica().running(settings), replica().running(settings):
        await asyncio.gather(*(bus.send("worker", "order", {"number": number}) for number in range(200)))
        while len(handled) < 200:
            await asyncio.sleep(0.02)
        await emptied(bus)
    assert sorted(handled) == list(range(200))


async def test_unknown_fields_and_extensions_are_kept(bus: Bus, settings: Settings) -> None:
    """ENV-4: a dead letter and the handler both see what this version does not know."""
    agent, got = Agent("worker"), asyncio.Queue[Message]()

    @agent.on("order")
    async def handle(payload: Any, message: Message) -> None:
        await got.put(message)

    stranger = await nats.connect(settings.servers)
    foreign = {**GOOD, "importance": 9, "extensions": {"x_color": "teal"}, "payload": {"number": 1, "more": True}}
    await stranger.jetstream().publish(
        f"{settings.namespace}.v1.work.worker.normal.stranger.order", orjson.dumps(foreign)
    )
    await stranger.close()
    async with agent.running(settings):
        message = await got.get()
    assert message.envelope.unknown == {"importance": 9}
    assert message.envelope.extensions["x_color"] == "teal"
    assert message.payload == {"number": 1, "more": True}
