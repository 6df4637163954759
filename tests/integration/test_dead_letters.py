"""Dead letters on a real server: sent again, edited, dropped, and made of what the server gave up on (DEL-4)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import nats
import orjson
import pytest
from nats.js import JetStreamContext

from bus import Agent, Bus, DeadLetter, Message, PermanentFailure, Rejected, RetryLater, Settings
from bus.broker.messages import get_message
from bus.broker.streams import StreamNames
from bus.delivery.dedupe import Claim, Dedupe
from bus.delivery.letter import NoSuchDeadLetter
from bus.delivery.mending import NotRetried, Retry
from tests.integration.test_delivery import GOOD, emptied, settled_dead_letters

BEGINNING = datetime.fromtimestamp(0, UTC)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
async def stranger(settings: Settings) -> Any:
    """A plain nats-py connection to the same server."""
    one = await nats.connect(settings.servers)
    yield one
    await one.close()


async def letters(bus: Bus, **filters: str) -> list[DeadLetter]:
    return [one async for one in bus.dead_letters.list(**filters)]


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.02)


def failing(name: str, fails: Callable[[Message], bool], got: list[Message]) -> Agent:
    """An agent whose handler of `order` fails for as long as `fails` says so."""
    agent = Agent(name)

    @agent.on("order")
    async def order(payload: Any, message: Message) -> None:
        got.append(message)
        if fails(message):
            raise PermanentFailure("not yet")

    return agent


async def history(js: JetStreamContext, settings: Settings) -> list[tuple[dict[str, str], bytes]]:
    """What was stored as work for the worker, in order."""
    stream = StreamNames.of(settings.namespace).history
    found = []
    for seq in range(1, (await js.stream_info(stream)).state.last_seq + 1):
        message = await js.get_msg(stream, seq)
        if ".history.worker." in (message.subject or ""):
            found.append((message.headers or {}, message.data or b""))
    return found


async def test_a_retried_message_is_the_same_message_and_another_attempt(
    bus: Bus, settings: Settings, stranger: Any
) -> None:
    """Ids, causation, trace and the sender's own headers stay; attempts go on; the policy's budget starts anew."""
    subject = f"{settings.namespace}.v1.work.worker.high.stranger.order"
    data = orjson.dumps({**GOOD, "extensions": {"causation_id": "cause", "x_color": "teal"}, "payload": {"n": 1}})
    own = {"traceparent": TRACE, "X-Note": "grün", "Nats-Msg-Id": "stranger:m", "Bus-Dead-Object": "invented"}
    await stranger.jetstream().publish(subject, data, headers=own)
    attempts: list[int] = []
    agent, healthy = Agent("worker"), False

    @agent.on("order")
    async def order(payload: Any, message: Message) -> None:
        attempts.append(message.attempt)
        if not healthy:
            raise RetryLater(0.0, "down")

    async with agent.running(settings.model_copy(update={"max_attempts": 2})):
        (dead,) = await settled_dead_letters(bus, 1)
        assert (dead.attempts, dead.data, dead.type) == (2, data, "order")
        assert float(dead.headers["Bus-Dead-Exec-Ms"]) >= 0
        await bus.dead_letters.retry(dead.id)
        await until(lambda: len(attempts) == 4)
        (again,) = await settled_dead_letters(bus, 1)
        while again.id == dead.id:
            (again,) = await settled_dead_letters(bus, 1)
        assert (again.attempts, again.data) == (4, data)
        assert again.origin_seq > dead.origin_seq
        healthy = True
        retried = await bus.dead_letters.retry(again.id)
        await emptied(bus)
    assert attempts == [1, 2, 3, 4, 5]
    assert (retried.subject, retried.message_id, retried.is_repeat) == (subject, "m", False)
    assert await letters(bus) == []
    first, second, third = await history(stranger.jetstream(), settings)
    assert first[1] == second[1] == third[1] == data
    for headers, attempts_before in ((second[0], "2"), (third[0], "4")):
        assert headers["Bus-Attempts"] == attempts_before
        assert headers["traceparent"] == TRACE
        assert str(headers["X-Note"]) != ""
        assert headers["Nats-Msg-Id"].startswith("retry:")
        assert not [name for name in headers if name.startswith(("Bus-Dead", "Bus-Origin", "Bus-Failed"))]


async def test_a_retried_message_keeps_its_completion(
    bus: Bus, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A letter whose message was completed after all is acknowledged as a duplicate, by another replica too.

    A retried message may have been completed elsewhere a moment ago, so its claim catches up as for a redelivery.
    """
    claimed: list[bool] = []
    claim = Dedupe.claim_undoubted

    def seen(dedupe: Dedupe, key: bytes, *, seq: int, redelivered: bool) -> Claim | None:
        claimed.append(redelivered)
        return claim(dedupe, key, seq=seq, redelivered=redelivered)

    monkeypatch.setattr(Dedupe, "claim_undoubted", seen)
    got: list[Message] = []
    async with failing("worker", lambda _: len(got) == 1, got).running(settings):
        await bus.send("worker", "order", {})
        (dead,) = await settled_dead_letters(bus, 1)
        stored = await get_message(bus.connection, StreamNames.of(settings.namespace).dead, dead.id)
        assert stored is not None
        await bus.dead_letters.retry(dead.id)
        await until(lambda: len(got) == 2)
        await emptied(bus)
        # The same letter once more, as after a crash long ago: stored under another id of the broker's.
        js = await nats.connect(settings.servers)
        kept = {name: value for name, value in stored.headers.items() if not name.startswith("Nats-")}
        ack = await js.jetstream().publish(stored.subject, stored.data, headers=kept)
        await js.close()
        async with failing("worker", lambda _: False, got).running(settings):
            await bus.dead_letters.retry(ack.seq)
            await emptied(bus)
    assert len(got) == 2
    assert claimed == [False, True, True]
    assert await letters(bus) == []


async def test_a_retry_that_is_repeated_counts_once(
    bus: Bus, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the broker's answer and the removal, then begun again: sent once."""
    got: list[Message] = []
    async with failing("worker", lambda _: True, got).running(settings):
        for n in range(3):
            await bus.send("worker", "order", {"n": n})
        await settled_dead_letters(bus, 3)

    async def killed(*_: Any) -> bool:
        raise asyncio.CancelledError

    with monkeypatch.context() as patch, contextlib.suppress(asyncio.CancelledError):
        patch.setattr("bus.delivery.mending.delete_message", killed)
        async for _ in bus.dead_letters.retry_each([1, 2, 3]):
            raise AssertionError("killed before")
    assert [one.id for one in await letters(bus)] == [1, 2, 3]
    done = [one async for one in bus.dead_letters.retry_each([1, 2, 3, 99])]
    assert [(one.id, one.is_repeat) for one in done if isinstance(one, Retry)] == [(1, True), (2, False), (3, False)]
    assert await letters(bus) == []
    info = await counted(settings, StreamNames.of(settings.namespace).work, f"{settings.namespace}.v1.work.worker.>")
    assert sum(info.values()) == 3


async def counted(settings: Settings, stream: str, subject: str) -> dict[str, int]:
    client = await nats.connect(settings.servers)
    found = (await client.jetstream().stream_info(stream, subjects_filter=subject)).state.subjects or {}
    await client.close()
    return found


async def test_two_mass_retries_at_once_send_each_once(bus: Bus, settings: Settings) -> None:
    got: list[Message] = []
    async with failing("worker", lambda _: True, got).running(settings):
        await asyncio.gather(*(bus.send("worker", "order", {"n": n}) for n in range(30)))
        await settled_dead_letters(bus, 30)
    ids = [one.id for one in await letters(bus)]

    async def run() -> int:
        return len([one async for one in bus.dead_letters.retry_each(ids, per_second=5000)])

    async with Bus.connect("second", settings=settings) as second:
        other = [one async for one in second.dead_letters.retry_each(reversed(ids[:15]), per_second=5000)]
        assert len(other) == 15
        await asyncio.gather(run(), run())
    got.clear()
    async with failing("worker", lambda _: False, got).running(settings):
        await until(lambda: len(got) >= 30)
        await emptied(bus)
    assert sorted(one.payload["n"] for one in got) == list(range(30))
    assert {one.attempt for one in got} == {2}


async def test_a_mass_retry_is_paced(bus: Bus, settings: Settings) -> None:
    """Ten at fifty a second take at least 9 pauses of 20 ms; the pauses are not made up for later."""
    got: list[Message] = []
    async with failing("worker", lambda _: True, got).running(settings):
        await asyncio.gather(*(bus.send("worker", "order", {"n": n}) for n in range(10)))
        await settled_dead_letters(bus, 10)
    loop = asyncio.get_running_loop()
    times = [loop.time() async for _ in bus.dead_letters.retry_each(range(1, 11), per_second=50)]
    assert len(times) == 10
    assert times[-1] - times[0] >= 0.17


async def test_filters_and_aliases(bus: Bus, settings: Settings, stranger: Any) -> None:
    agent = Agent("worker")

    @agent.on("order")
    async def order(payload: Any) -> None:
        raise PermanentFailure("no")

    async with agent.running(settings):
        await bus.send("worker", "order", {})
        await bus.send("worker", "invoice", {})
        await stranger.jetstream().publish(f"{settings.namespace}.v1.work.worker.low.stranger.note", b"garbage")
        await settled_dead_letters(bus, 3)
    assert len(await letters(bus, code="tool_execution_error")) == 1
    assert [one.type for one in await letters(bus, type="note")] == ["note"]
    assert [one.code for one in await letters(bus, type="invoice")] == ["protocol.no_handler"]
    assert await letters(bus, agent="nobody") == []
    with pytest.raises(ValueError, match="error table"):
        await letters(bus, code="payload.wrong")
    with pytest.raises(ValueError, match="agent name"):
        await letters(bus, agent="*")


async def test_edited_letters_keep_their_story_and_their_original(bus: Bus, settings: Settings) -> None:
    """A new id, the old one gone; the bytes as they came stay, also after a second edit; the retry is handled."""
    got: list[Message] = []
    async with failing("worker", lambda message: message.payload != {"n": 2}, got).running(settings):
        sent = await bus.send("worker", "order", {"n": 0}, workflow_id="wf")
        (dead,) = await settled_dead_letters(bus, 1)
        first_id = await bus.dead_letters.edit(dead.id, sent.replace(payload={"n": 1}).encode())
        second_id = await bus.dead_letters.edit(first_id, sent.replace(payload={"n": 2}).encode())
        (edited,) = await letters(bus)
        assert (edited.id, edited.edited_from, edited.attempts, edited.code) == (second_id, first_id, 1, dead.code)
        assert edited.failed_at == dead.failed_at
        assert await bus.dead_letters.original(edited) == dead.data == sent.encode()
        await bus.dead_letters.retry(second_id)
        await until(lambda: len(got) == 2)
        await emptied(bus)
    assert (got[1].message_id, got[1].attempt, got[1].workflow_id) == (sent.message_id, 2, "wf")
    assert await letters(bus) == []


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda _: b"still garbage", "$"),
        (lambda good: orjson.dumps({**good, "extensions": {"hops": "many"}}), "extensions.hops"),
        (lambda good: orjson.dumps({**good, "from": "boss"}), "from"),
        (lambda good: orjson.dumps({**good, "to": "other"}), "to"),
        (lambda good: orjson.dumps({**good, "to": "*"}), "to"),
    ],
)
async def test_a_wrong_edit_leaves_the_letter(
    change: Callable[[dict[str, Any]], bytes], path: str, bus: Bus, settings: Settings, stranger: Any
) -> None:
    """No envelope, or one in another's name or to another agent: refused with its path."""
    subject = f"{settings.namespace}.v1.work.worker.normal.stranger.order"
    await stranger.jetstream().publish(subject, b"\xff garbage")
    async with Agent("worker").running(settings):
        (dead,) = await settled_dead_letters(bus, 1)
    with pytest.raises(Rejected) as refused:
        await bus.dead_letters.edit(dead.id, change(GOOD))
    assert refused.value.info.details["path"] == path
    assert await letters(bus) == [dead]


async def test_garbage_edited_into_an_envelope_is_handled(bus: Bus, settings: Settings, stranger: Any) -> None:
    subject = f"{settings.namespace}.v1.work.worker.normal.stranger.garbled"
    await stranger.jetstream().publish(subject, b"\xff garbage")
    got: list[Message] = []
    async with failing("worker", lambda _: False, got).running(settings):
        (dead,) = await settled_dead_letters(bus, 1)
        new_id = await bus.dead_letters.edit(dead.id, orjson.dumps({**GOOD, "payload": {"n": 1}}))
        retried = await bus.dead_letters.retry(new_id)
        await until(lambda: got)
        await emptied(bus)
    assert retried.subject == f"{settings.namespace}.v1.work.worker.normal.stranger.order"
    assert (got[0].payload, got[0].attempt) == ({"n": 1}, 2)


async def test_two_edits_of_one_letter_make_one(bus: Bus, settings: Settings) -> None:
    """The second is told that the letter is gone; the same edit again finds what it made."""
    got: list[Message] = []
    async with failing("worker", lambda _: True, got).running(settings):
        sent = await bus.send("worker", "order", {"n": 0})
        (dead,) = await settled_dead_letters(bus, 1)
    one, two = sent.replace(payload={"n": 1}).encode(), sent.replace(payload={"n": 2}).encode()
    results = await asyncio.gather(
        bus.dead_letters.edit(dead.id, one), bus.dead_letters.edit(dead.id, two), return_exceptions=True
    )
    assert sum(isinstance(result, NoSuchDeadLetter) for result in results) == 1
    (left,) = await letters(bus)
    assert left.id in results
    assert left.data in (one, two)


async def test_large_letters_and_large_headers(bus: Bus, settings: Settings, stranger: Any) -> None:
    """Kept whole as objects, sent again whole; a letter whose object is gone is not sent as nothing."""
    subject = f"{settings.namespace}.v1.work.worker.normal.stranger.order"
    body = b"x" * (1024 * 1024 - 2048)
    header = {"X-Large": "h" * (64 * 1024 - 60)}
    await stranger.jetstream().publish(subject, body)
    await stranger.jetstream().publish(subject, b"{}", headers=header)
    async with Agent("worker").running(settings):
        large, loaded = sorted(await settled_dead_letters(bus, 2), key=lambda one: one.origin_seq)
        assert large.data == body
        assert loaded.headers["X-Large"] == header["X-Large"]
    retried = [one async for one in bus.dead_letters.retry_each([large.id, loaded.id])]
    assert [type(one) for one in retried] == [Retry, NotRetried]
    (message,) = [data for headers, data in await history(stranger.jetstream(), settings) if "Bus-Attempts" in headers]
    assert message == body
    async with Agent("worker").running(settings):
        (again,) = [one for one in await settled_dead_letters(bus, 2) if one.data == body]
    await (await stranger.jetstream().object_store(f"{settings.namespace}_artifacts")).delete(
        again.headers["Bus-Dead-Object"]
    )
    lost = await bus.dead_letters.get(again.id)
    assert lost is not None
    assert not lost.is_whole
    with pytest.raises(Rejected, match="forgotten"):
        await bus.dead_letters.retry(again.id)
    await bus.dead_letters.drop(again.id)
    with pytest.raises(NoSuchDeadLetter):
        await bus.dead_letters.drop(again.id)


@pytest.mark.parametrize(
    "subject", ["$JS.API.STREAM.DELETE.X", "{}.v1.work.boss.normal.worker.order", "", "{}.v1.work.worker.>"]
)
async def test_a_forged_letter_cannot_send_elsewhere(subject: str, bus: Bus, settings: Settings, stranger: Any) -> None:
    """Who may write letters of `worker` must not get a person to publish where `worker` does not read."""
    origin = subject.format(settings.namespace)
    headers = {"Bus-Origin-Subject": origin, "Bus-Attempts": "-1", "Bus-Failed-At": "never", "Bus-Dead-Details": "[]"}
    forged = f"{settings.namespace}.v1.dead.worker.tool-timeout"
    await stranger.jetstream().publish(forged, orjson.dumps(GOOD), headers=headers)
    (dead,) = await letters(bus)
    assert (dead.code, dead.attempts, dead.details, dead.origin_seq) == ("tool.timeout", 0, {}, 0)
    with pytest.raises(Rejected, match="no work subject of worker"):
        await bus.dead_letters.retry(dead.id)
    assert await letters(bus) == [dead]
