"""What the server gave up on becomes a dead letter, once, whoever repairs it (DEL-4)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import orjson
import pytest
from nats.js.api import ConsumerConfig

from bus import Agent, Bus, DeadLetter, Message, Settings
from bus.broker.connection import Connection
from bus.broker.provisioning import DEAD_MAX_AGE_S, provision
from bus.broker.streams import StreamNames
from bus.delivery.letter import NoSuchDeadLetter
from bus.telemetry.instruments import merged
from tests.integration.otlp_receiver import Received
from tests.integration.test_dead_letters import BEGINNING, TRACE, counted, failing, letters, stranger, until
from tests.integration.test_delivery import GOOD, emptied

__all__ = ["stranger"]

GIVES_UP = {"max_attempts": 1, "max_deliver": 2, "ack_wait_s": 1.0}


async def give_up(settings: Settings, stranger: Any, *, announce: bool) -> None:
    """Delivers everything that waits for the worker twice and settles nothing, as a worker that is killed each time.

    `announce`: asks a third time, which is when the server notices that it has to give up.
    """
    js = stranger.jetstream()
    stream = StreamNames.of(settings.namespace).work
    config = ConsumerConfig(
        durable_name="worker",
        filter_subject=f"{settings.namespace}.v1.work.worker.>",
        ack_policy="explicit",  # type: ignore[arg-type]
        ack_wait=1,
        max_deliver=2,
    )
    await js.add_consumer(stream, config)
    subscription = await js.pull_subscribe_bind("worker", stream)
    for _ in range(2):
        for message in await subscription.fetch(10, timeout=1):
            await message.nak()
    if announce:
        with contextlib.suppress(TimeoutError):
            await subscription.fetch(10, timeout=0.3)
    await subscription.unsubscribe()


async def given_up_letters(bus: Bus, settings: Settings, count: int) -> list[DeadLetter]:
    """Waits until nothing is left of what the server gave up on but its letters."""
    names = StreamNames.of(settings.namespace)
    while await counted(settings, names.work, f"{settings.namespace}.v1.work.worker.>") or await counted(
        settings, names.dead, "$JS.>"
    ):
        await asyncio.sleep(0.05)
    found = await letters(bus)
    assert len(found) == count
    return found


@pytest.mark.parametrize("announce", [True, False], ids=["before the start", "while it runs"])
async def test_what_the_server_gave_up_on_becomes_a_letter(
    announce: bool, bus: Bus, settings: Settings, stranger: Any
) -> None:
    """Original bytes and headers, one letter from three replicas, gone from the work stream, the sender told once."""
    settings = settings.model_copy(update=GIVES_UP)
    subject = f"{settings.namespace}.v1.work.worker.normal.stranger.order"
    data = orjson.dumps({**GOOD, "payload": {"n": 1}})
    await stranger.jetstream().publish(subject, data, headers={"X-Note": "grün …", "traceparent": TRACE})
    await stranger.jetstream().publish(subject, b"\xff garbage")
    await give_up(settings, stranger, announce=announce)
    got: list[Message] = []
    replicas = [failing("worker", lambda _: False, got) for _ in range(3)]
    async with replicas[0].running(settings), replicas[1].running(settings), replicas[2].running(settings):
        first, second = await given_up_letters(bus, settings, 2)
        assert [
            seen.seq
            for seen in [one async for one in bus.watch(agent="worker", since=BEGINNING, follow=False)]
            if seen.kind == "dead"
        ]
        retried = await bus.dead_letters.retry(first.id if first.data == data else second.id)
        await until(lambda: got)
        await emptied(bus)
    assert {first.data, second.data} == {data, b"\xff garbage"}
    (told,) = [one for one in (first, second) if one.data == data]
    assert (told.code, told.attempts, told.origin_subject) == ("tool.execution_failed", 2, subject)
    assert "gave up after 2 deliveries" in told.reason
    assert told.headers["X-Note"] == "grün …"
    assert told.details == {"deliveries": 2}
    assert (got[0].attempt, got[0].message_id, retried.subject) == (3, "m", subject)
    errors = await counted(
        settings, StreamNames.of(settings.namespace).work, f"{settings.namespace}.v1.work.stranger.*.worker.error"
    )
    assert sum(errors.values()) == 2


async def test_a_letter_of_what_the_server_gave_up_on_is_counted_and_has_its_span(
    settings: Settings, stranger: Any, received: Received
) -> None:
    """OBS-1, OBS-4: once for all replicas, below the send that its headers name, in red; garbage too."""
    settings = settings.model_copy(update=GIVES_UP)
    subject = f"{settings.namespace}.v1.work.worker.normal.stranger.order"
    data = orjson.dumps({**GOOD, "payload": {"n": 1}, "workflow_id": "w"})
    async with Bus.connect("me", settings=settings) as bus:
        await stranger.jetstream().publish(subject, data, headers={"traceparent": TRACE})
        await stranger.jetstream().publish(subject, b"\xff garbage")
        await give_up(settings, stranger, announce=True)
        replicas = [failing("worker", lambda _: False, []) for _ in range(2)]
        async with replicas[0].running(settings) as first, replicas[1].running(settings) as second:
            letters = await given_up_letters(bus, settings, 2)
            counts = {
                f"{metric.name} {dict(labels)['bus.type']}": value
                for metric in merged([*first.metrics.read(), *second.metrics.read()])
                if metric.name in ("bus.dead_letters", "bus.refused")
                for labels, value in metric.values.items()
            }
    assert counts == {
        "bus.dead_letters order": 1,
        "bus.dead_letters _other": 1,
        "bus.refused order": 0,
        "bus.refused _other": 0,
    }
    (span,) = received.named("settle worker.order")
    _, trace, parent, _ = TRACE.split("-")
    assert (span["trace"], span["parent"], span["links"]) == (trace, parent, [parent])
    assert (span["events"], span["error"], span["error.type"]) == (["dead_letter"], True, "tool.execution_failed")
    assert (span["bus.settlement"], span["bus.attempt"], span["bus.workflow_id"]) == ("dead", 2, "w")
    (garbage,) = received.named("settle worker")
    assert (garbage["parent"], garbage["events"]) == ("", ["dead_letter"])
    assert len(letters) == 2
    (told,) = [one for one in received.named("send stranger.error") if one["trace"] == trace]
    assert told["parent"] == parent


async def test_what_was_completed_or_buried_is_only_removed(bus: Bus, settings: Settings, stranger: Any) -> None:
    """A completion elsewhere, or a letter of a replica that died before the removal: no second letter."""
    settings = settings.model_copy(update=GIVES_UP)
    got: list[Message] = []
    async with failing("worker", lambda _: False, got).running(settings):
        sent = await bus.send("worker", "order", {"n": 1})
        await until(lambda: got)
        await emptied(bus)
    js = stranger.jetstream()
    await js.publish(f"{settings.namespace}.v1.work.worker.normal.tester.order", sent.encode())
    other = await js.publish(f"{settings.namespace}.v1.work.worker.normal.tester.order", b"other")
    await give_up(settings, stranger, announce=True)
    headers = {
        "Bus-Origin-Subject": f"{settings.namespace}.v1.work.worker.normal.tester.order",
        "Bus-Origin-Seq": str(other.seq),
        "Bus-Dead-Code": "tool.execution_failed",
    }
    await js.publish(f"{settings.namespace}.v1.dead.worker.tool-execution_failed", b"other", headers=headers)
    async with failing("worker", lambda _: False, got).running(settings):
        (dead,) = await given_up_letters(bus, settings, 1)
    assert dead.headers["Bus-Origin-Seq"] == str(other.seq)
    assert "Bus-Dead-Reason" not in dead.headers
    assert len(got) == 1


async def test_advisories_never_disturb(bus: Bus, settings: Settings, stranger: Any) -> None:
    """In the stream, but no dead letters; what is not about this agent's messages is removed without harm."""
    names = StreamNames.of(settings.namespace)
    js = stranger.jetstream()
    mine = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{names.work}.worker"
    theirs = await js.publish(f"{settings.namespace}.v1.work.other.normal.stranger.order", orjson.dumps(GOOD))
    for body in (b"garbage", b"{}", b'{"stream_seq": "x", "deliveries": 1}', b"[]"):
        await js.publish(mine, body)
    last = await js.publish(mine, b'{"stream_seq": %d, "deliveries": 3}' % theirs.seq)
    assert last.stream == names.dead
    assert await letters(bus) == []
    assert await bus.dead_letters.get(last.seq) is None
    assert [one.kind async for one in bus.watch(since=BEGINNING, follow=False)] == ["work"]
    with pytest.raises(NoSuchDeadLetter):
        await bus.dead_letters.drop(last.seq)
    async with Agent("worker").running(settings):
        await given_up_letters(bus, settings, 0)
    assert (await js.get_msg(names.work, theirs.seq)).data == orjson.dumps(GOOD)


async def test_an_existing_stream_learns_the_advisories(settings: Settings, stranger: Any) -> None:
    """A bus from before: the subject is added once, the letters stay, and the order of subjects does not matter."""
    names, js = StreamNames.of(settings.namespace), stranger.jetstream()
    own = f"{settings.namespace}.v1.dead.>"
    await js.add_stream(name=names.dead, subjects=[own], max_age=DEAD_MAX_AGE_S)
    await js.publish(f"{settings.namespace}.v1.dead.worker.tool-timeout", b"old")
    connection = await Connection.open(settings, name="tester")
    try:
        assert await provision(connection) == []
        subjects = (await js.stream_info(names.dead)).config.subjects
        advisories = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES"
        assert subjects == [own, f"{advisories}.{names.work}.*", f"{advisories}.{names.later}.*"]
        assert await provision(connection) == []
        assert (await js.stream_info(names.dead)).state.messages == 1
    finally:
        await connection.close()
