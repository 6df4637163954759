"""The trace goes with the message, whatever happens to it (OBS-2)."""

from __future__ import annotations

import hashlib
from typing import Any

import nats
import orjson
import pytest

from bus import Agent, Bus, Envelope, Message, PermanentFailure, RetryLater, Settings
from tests.integration.otlp_receiver import Received
from tests.integration.test_delivery import emptied, settled_dead_letters

TRACE, OTHER_TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "4bf92f3577b34da6a3ce929d0e0e4736", "b7ad6b7169203331"


async def handled(settings: Settings, trace_id: str, headers: dict[str, str]) -> tuple[Envelope, dict[str, str]]:
    """Has a worker handle a stranger's message; what it sends on then, and the headers of that."""
    worker = Agent("worker")

    @worker.on("job")
    async def job(payload: Any, message: Message) -> None:
        await message.send("sink", "part", {})

    stranger = await nats.connect(settings.servers)
    message = {"version": "1.2", "message_id": "m", "trace_id": trace_id, "from": "x", "to": "worker", "type": "job"}
    async with Bus.connect("caller", settings=settings) as bus, worker.running(settings):
        subject = f"{settings.namespace}.v1.work.worker.normal.x.job"
        await stranger.jetstream().publish(subject, orjson.dumps(message), headers=headers or None)
        await emptied(bus)
        stored = await stranger.jetstream().get_last_msg(
            f"{settings.namespace.upper()}_WORK", f"{settings.namespace}.v1.work.sink.normal.worker.part"
        )
    await stranger.close()
    return Envelope.decode(stored.data or b""), stored.headers or {}


@pytest.mark.parametrize("trace_id", [TRACE, OTHER_TRACE])
async def test_header_and_envelope_agree_on_what_is_sent(settings: Settings, received: Received, trace_id: str) -> None:
    """Also when they did not agree on what came: the header is the hop."""
    sent, headers = await handled(settings, trace_id, {"traceparent": f"00-{TRACE}-{SPAN}-01"})
    (span,) = received.named("process worker.job")
    (send,) = received.named("send sink.part")
    assert (span["trace"], span["parent"], span["links"]) == (TRACE, SPAN, [SPAN])
    assert headers["traceparent"] == f"00-{TRACE}-{send['id']}-01"
    assert sent.trace_id == TRACE


async def test_a_foreign_trace_id_stays_in_the_envelope_and_on_the_spans(
    settings: Settings, received: Received
) -> None:
    sent, headers = await handled(settings, "trace_88f", {})
    mapped = hashlib.sha256(b"trace_88f").digest()[:16].hex()
    assert headers["traceparent"].split("-")[1] == mapped
    assert sent.trace_id == "trace_88f"
    for name in ("process worker.job", "send sink.part"):
        (span,) = received.named(name)
        assert (span["trace"], span["bus.foreign_trace_id"]) == (mapped, "trace_88f")


@pytest.mark.parametrize("flags", ["00", "02"])
async def test_unsampled_goes_on_and_is_not_recorded(settings: Settings, received: Received, flags: str) -> None:
    traceparent = f"00-{TRACE}-{SPAN}-{flags}"
    coming = {"traceparent": traceparent, "tracestate": "vendor=x", "baggage": "k=v"}
    sent, headers = await handled(settings, TRACE, coming)
    assert (headers["traceparent"], headers["tracestate"], headers["baggage"]) == (traceparent, "vendor=x", "k=v")
    assert sent.trace_id == TRACE
    assert received.spans == []


async def test_flags_of_the_sdk_are_sampled_and_other_members_of_tracestate_stay(
    settings: Settings, received: Received
) -> None:
    """OpenTelemetry's SDK writes 03: sampled, and a random trace id."""
    _, headers = await handled(settings, TRACE, {"traceparent": f"00-{TRACE}-{SPAN}-03", "tracestate": "vendor=x"})
    assert headers["traceparent"].endswith("-03")
    assert headers["tracestate"].split(",")[1:] == ["vendor=x"]
    assert len(received.named("process worker.job")) == 1


@pytest.mark.parametrize("traceparent", ["", "garbage", f"00-{'0' * 32}-{SPAN}-01"])
async def test_without_a_usable_header_the_envelope_names_the_trace(
    settings: Settings, received: Received, traceparent: str
) -> None:
    """And nothing of the task around the handler counts as a parent: the context begins empty."""
    await handled(settings, TRACE, {"traceparent": traceparent} if traceparent else {})
    (span,) = received.named("process worker.job")
    assert (span["trace"], span["parent"], span["links"]) == (TRACE, "", [])


async def test_retried_buried_and_sent_again_is_still_below_its_first_send(
    settings: Settings, received: Received
) -> None:
    worker, broken = Agent("worker"), True

    @worker.on("job")
    async def job(payload: Any, message: Message) -> None:
        if message.attempt == 1:
            raise RetryLater(0.0)
        if broken:
            raise PermanentFailure("not today")

    async with Bus.connect("caller", settings=settings) as bus, worker.running(settings):
        await bus.send("worker", "job", {}, workflow_id="w")
        (letter,) = await settled_dead_letters(bus, 1)
        broken = False
        await bus.dead_letters.retry(letter.id)
        await emptied(bus)
    (send,) = received.named("send worker.job")
    assert letter.headers["traceparent"].split("-")[2] == send["id"]
    attempts = received.named("process worker.job")
    assert [one["parent"] for one in attempts] == [send["id"]] * 3
    story = sorted((one["bus.attempt"], one["bus.settlement"], one.get("error.type")) for one in attempts)
    assert story == [
        (1, "nak", "tool.execution_failed"),
        (2, "dead", "tool.execution_failed"),
        (3, "ack", None),
    ]
    settled_by = {one["bus.settlement"]: one["parent"] for one in received.named("settle worker.job")}
    by_settlement = {one["bus.settlement"]: one["id"] for one in attempts}
    assert settled_by == {"nak": by_settlement["nak"], "dead": by_settlement["dead"]}
    assert all(one["bus.exec_ms"] >= 0 for one in attempts)


async def test_agents_of_one_process_are_services_of_their_own(settings: Settings, received: Received) -> None:
    ping, pong = Agent("ping"), Agent("pong")

    @ping.on("serve")
    async def serve(payload: Any, message: Message) -> None:
        await message.send("pong", "ball", {})

    @pong.on("ball")
    async def ball(payload: Any) -> None: ...

    async with Bus.connect("caller", settings=settings) as bus, ping.running(settings), pong.running(settings):
        await bus.send("ping", "serve", {})
        await emptied(bus)
    services = {(one["service"], one["instance"]) for one in received.spans}
    assert len(services) == len({service for service, _ in services}) == 3
    assert {one["service"] for one in received.named("process pong.ball")} == {"pong"}


async def test_a_reply_says_how_long_the_handler_worked(settings: Settings) -> None:
    worker = Agent("worker")

    @worker.on("job")
    async def job(payload: Any, message: Message) -> None:
        await message.reply("done", {}, extensions={"mine": 1})

    async with Bus.connect("caller", settings=settings) as bus, worker.running(settings):
        outcome = await bus.outcome(await bus.send("worker", "job", {}))
    assert outcome.reply is not None
    assert outcome.reply.extensions["exec_ms"] >= 0
    assert outcome.reply.extensions["mine"] == 1
