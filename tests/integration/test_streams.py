"""Streamed calls on a real broker: chunks, credit, progress, events, resume, and how they end (REG-7, EDGE-2)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, TypeVar

import orjson
import pytest
from pydantic import BaseModel, Field

from bus import Agent, Bus, BusError, Call, Envelope, Message, Settings

Item = TypeVar("Item")

BEGINNING = datetime.fromtimestamp(0, UTC)


class Line(BaseModel):
    number: int = Field(ge=1)
    text: str = ""


class Writer:
    """An agent that streams, and what became of it."""

    def __init__(self, **options: Any) -> None:
        self.agent = Agent("writer", **options)
        self.yielded = 0
        self.closed = asyncio.Event()

        @self.agent.capability("report.write", example={"lines": 2}, timeout_s=20)
        async def write(lines: int, fail_after: int = 0, chars: int = 1) -> AsyncIterator[Line]:
            """Writes a report, line by line."""
            self.yielded = 0
            self.closed.clear()
            try:
                for number in range(1, lines + 1):
                    self.yielded = number
                    yield Line(number=number, text="x" * chars)
                    if number == fail_after:
                        raise RuntimeError("out of ink")
            finally:
                self.closed.set()

        @self.agent.capability("silence.keep", description="Never says anything.", timeout_s=20)
        async def keep() -> AsyncIterator[int]:
            try:
                await asyncio.sleep(60)
                yield 1
            finally:
                self.closed.set()


async def collected(items: AsyncIterator[Item]) -> list[Item]:
    return [item async for item in items]


async def failure(stream: AsyncIterator[Any]) -> BusError:
    """What a stream ends with."""
    with pytest.raises(BusError) as ended:
        await collected(stream)
    return ended.value


async def test_chunks_come_in_order_and_the_end_says_how_many(bus: Bus, settings: Settings) -> None:
    async with Writer().agent.running(settings):
        stream = bus.stream("report.write", {"lines": 300})
        assert stream.next == 1
        assert [chunk["number"] async for chunk in stream] == list(range(1, 301))
        assert stream.next == 301
        assert stream.result is not None
        assert stream.result.ok
        assert stream.result.meta["chunks"] == 300
        assert stream.result.meta["tool_name"] == "report.write"
        (offer,) = await bus.capabilities.find("report.")
        assert offer.card.streaming
        assert offer.card.output_schema is not None
        assert offer.card.output_schema["properties"]["number"]["minimum"] == 1
        with pytest.raises(RuntimeError, match="read once"):
            await collected(stream.records())


async def test_who_calls_without_a_stream_gets_all_items_in_a_list(bus: Bus, settings: Settings) -> None:
    """And such a call has keys and limits as every other."""
    writer = Writer()
    async with writer.agent.running(settings):
        whole = await bus.call("report.write", {"lines": 3}, idempotency_key="k")
        assert [line["number"] for line in whole.data] == [1, 2, 3]
        assert whole.meta["chunks"] == 3
        again = await bus.call("report.write", {"lines": 3}, idempotency_key="k")
        assert (again.data, again.meta["replayed"]) == (whole.data, True)
        cut = await bus.call("report.write", {"lines": 50, "chars": 100}, max_result_bytes=500)
        assert cut.meta["whole"]["size_bytes"] > 5000


async def test_an_error_after_some_chunks_ends_the_stream_after_them(bus: Bus, settings: Settings) -> None:
    writer = Writer()
    async with writer.agent.running(settings):
        stream = bus.stream("report.write", {"lines": 9, "fail_after": 4})
        ended = await failure(stream.__aiter__())
        assert "out of ink" in ended.info.message
        assert ended.info.code == "tool.execution_failed"
        assert ended.info.details["chunks"] == 4
        assert stream.next == 5
    assert stream.result is not None
    assert stream.result.error is not None


async def test_every_chunk_passes_the_second_gate_and_refusals_come_before_the_first(
    bus: Bus, settings: Settings
) -> None:
    agent = Agent("writer")

    @agent.capability("line.write", description="Writes.")
    async def write(text: str) -> AsyncIterator[Line]:
        yield Line(number=1)
        yield Line.model_construct(number=0, text=text)

    async with agent.running(settings):
        stream = bus.stream("line.write", {"text": "x"})
        invalid = await failure(stream.__aiter__())
        assert invalid.info.code == "tool.invalid_result"
        assert stream.next == 2
        refused = await failure(bus.stream("line.write", {"txt": "x"}).__aiter__())
        assert refused.info.code == "tool.validation_failed"
        assert "instruction" in refused.info.details
        absent = await failure(bus.stream("line.wrote", {}).__aiter__())
        assert absent.info.code == "registry.capability_not_found"


async def test_the_work_runs_ahead_of_a_slow_reader_by_the_window_and_no_more(bus: Bus, settings: Settings) -> None:
    writer = Writer()
    async with writer.agent.running(settings):
        ahead = []
        async for chunk in bus.stream("report.write", {"lines": 60}, window=8):
            await asyncio.sleep(0.005)
            ahead.append(writer.yielded - chunk["number"])
        # The one beyond the window waits for room.
        assert 4 <= max(ahead) <= 9
        # Large chunks: 4 MiB is the limit then.
        ahead = []
        async for chunk in bus.stream("report.write", {"lines": 12, "chars": 1 << 20}):
            await asyncio.sleep(0.02)
            assert len(chunk["text"]) == 1 << 20
            ahead.append(writer.yielded - chunk["number"])
        assert max(ahead) <= 5


@pytest.mark.parametrize("how", ["break", "cancel", "close", "with"])
async def test_a_reader_that_leaves_cancels_the_work(bus: Bus, settings: Settings, how: str) -> None:
    writer = Writer()

    async def read() -> None:
        stream = bus.stream("report.write", {"lines": 100_000})
        async with contextlib.AsyncExitStack() as stack:
            if how == "with":
                await stack.enter_async_context(stream)
            async for chunk in stream:
                if chunk["number"] == 3 and how == "break":
                    break
                if chunk["number"] == 3 and how == "close":
                    return await stream.aclose()
                if chunk["number"] == 3 and how == "with":
                    return None
                if chunk["number"] == 3 and how == "cancel":
                    asyncio.current_task().cancel()  # type: ignore[union-attr]

    async with writer.agent.running(settings) as replica:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.create_task(read())
        await asyncio.wait_for(writer.closed.wait(), 5)
        async with asyncio.timeout(5):
            while replica.in_flight:
                await asyncio.sleep(0.02)
    ended = [one async for one in bus.watch(type="agent_end", since=BEGINNING, follow=False)]
    assert [one.envelope.status for one in ended if one.envelope] == ["cancelled"]


async def test_a_silent_stream_can_be_left_and_keeps_to_its_deadline(bus: Bus, settings: Settings) -> None:
    writer = Writer()
    async with writer.agent.running(settings):
        late = await failure(bus.stream("silence.keep", timeout_s=0.5).__aiter__())
        assert late.info.code == "tool.timeout"
        assert late.info.details["chunks"] == 0
        assert writer.closed.is_set()
        writer.closed.clear()
        reading = asyncio.create_task(failure(bus.stream("silence.keep").__aiter__()))
        await asyncio.sleep(0.3)
        reading.cancel()
        await asyncio.wait_for(writer.closed.wait(), 5)


async def test_who_reads_no_more_without_a_word_ends_the_work_in_time(bus: Bus, settings: Settings) -> None:
    writer = Writer()
    async with writer.agent.running(settings, reader_timeout_s=2):
        stream = bus.stream("report.write", {"lines": 100_000})
        async for chunk in stream:
            if chunk["number"] == 3:
                stream.leave()
                break
        assert not writer.closed.is_set()
        await asyncio.wait_for(writer.closed.wait(), 8)
        ended = await failure(bus.resume(stream.call_id, after=stream.next - 1).__aiter__())
    assert ended.info.code == "tool.cancelled"


async def test_another_reader_of_the_same_name_goes_on_and_nobody_else(bus: Bus, settings: Settings) -> None:
    async with Writer().agent.running(settings):
        stream = bus.stream("report.write", {"lines": 500})
        async for chunk in stream:
            if chunk["number"] == 100:
                stream.leave()
                break
        async with Bus.connect("stranger", settings=settings) as stranger:
            refused = await failure(stranger.resume(stream.call_id).__aiter__())
            assert refused.info.code == "auth.permission_denied"
        async with Bus.connect("tester", settings=settings) as second:
            rest = second.resume(stream.call_id, after=100)
            assert [chunk["number"] async for chunk in rest] == list(range(101, 501))
        # What has ended is read again as long as it is kept.
        assert len(await collected(bus.resume(stream.call_id).__aiter__())) == 500
        unknown = await failure(bus.resume("never", after=3).__aiter__())
        assert unknown.info.code == "tool.execution_failed"


async def test_a_stop_of_the_callee_ends_the_stream_with_a_word(bus: Bus, settings: Settings) -> None:
    writer = Writer()
    async with writer.agent.running(settings, grace_s=0.2):
        reading = asyncio.create_task(failure(bus.stream("silence.keep").__aiter__()))
        while not [one async for one in bus.watch(type="agent_start", since=BEGINNING, follow=False)]:
            await asyncio.sleep(0.02)
    ended = await asyncio.wait_for(reading, 5)
    assert ended.info.code == "agent.unavailable"
    assert ended.info.details == {"started": True, "chunks": 0}
    assert writer.closed.is_set()


async def test_streams_go_onwards_from_capabilities_and_handlers(bus: Bus, settings: Settings) -> None:
    """The deadline shrinks, and what was read labels what is sent (SEC-4)."""
    middle, end = Agent("middle"), asyncio.Queue[list[int]]()

    @middle.capability("report.double", description="Doubles.", timeout_s=20)
    async def double(call: Call, lines: int) -> AsyncIterator[int]:
        async for line in call.stream("report.write", {"lines": lines}):
            call.label("external")
            yield line["number"] * 2

    @middle.on("note")
    async def note(payload: dict[str, Any], message: Message) -> None:
        read = [number async for number in message.stream("report.double", {"lines": 3}, timeout_s=5)]
        assert message.labels == ["external"]
        await end.put(read)

    async with Writer().agent.running(settings), middle.running(settings):
        await bus.send("middle", "note", {})
        assert await asyncio.wait_for(end.get(), 10) == [2, 4, 6]


async def test_a_stream_written_by_hand_needs_no_library_and_takes_no_key(bus: Bus, settings: Settings) -> None:
    """As the wire specification has it."""
    async with Writer().agent.running(settings):
        subject = f"{settings.namespace}.v1.call.writer.curl.report.write"
        request: dict[str, Any] = {
            "version": "1.2", "message_id": "m1", "trace_id": "t1", "from": "curl", "to": "writer",
            "type": "tool_call_request",
            "payload": {
                "tool_call_id": "c1", "tool_name": "report.write", "arguments": {"lines": 2},
                "observe": {"chunks": 10, "bytes": 100_000},
            },
        }  # fmt: skip
        keyed = orjson.dumps({**request, "extensions": {"idempotency_key": "k"}})
        answer = orjson.loads((await bus.connection.request(subject, keyed)).data)
        assert answer["payload"]["error"]["details"]["path"] == "extensions.idempotency_key"
        with pytest.raises(TypeError, match="no idempotency_key"):
            bus.stream("report.write", {"lines": 2}, idempotency_key="k")  # type: ignore[call-arg]
        answer = orjson.loads((await bus.connection.request(subject, orjson.dumps(request))).data)
        assert answer["status"] == "pending"
        assert answer["payload"]["meta"] == {"streaming": True}
        assert answer["payload"]["data"]["agent"] == "writer"
        async with Bus.connect("curl", settings=settings) as curl:
            assert [one["number"] async for one in curl.resume("c1")] == [1, 2]
        request["payload"]["observe"] = {"chunks": -1}
        answer = orjson.loads((await bus.connection.request(subject, orjson.dumps(request))).data)
        assert answer["payload"]["error"]["code"] == "protocol.malformed"


async def test_junk_and_forgeries_on_the_subject_of_a_stream_are_passed_over(
    bus: Bus, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer()
    async with writer.agent.running(settings):
        stream = bus.stream("report.write", {"lines": 20}, window=4)
        read = []
        async for chunk in stream:
            read.append(chunk["number"])
            if chunk["number"] == 2:
                end = {"tool_call_id": stream.call_id, "number": 9, "instance": "i", "chunks": 2, "ok": True}
                for to in ("tester", "somebody"):
                    forged = Envelope(sender="mallory", to=to, type="agent_end", payload=end).encode()
                    await bus.connection.request(bus.connection.subjects.stream("mallory", stream.call_id), forged)
                for forged in (b"junk", b"{}", b'{"type": "agent_end"}'):
                    subject = bus.connection.subjects.stream("mallory", stream.call_id)
                    await bus.connection.request(subject, forged)
    assert read == list(range(1, 21))
    assert sum("is no record of a call" in one.message for one in caplog.records) == 3


async def test_a_generator_that_will_not_close_cannot_hang_the_replica(bus: Bus, settings: Settings) -> None:
    agent = Agent("writer", call_concurrency=1)

    @agent.capability("stubborn.count", description="Yields while it is closed.")
    async def stubborn() -> AsyncIterator[int]:
        number = 0
        while True:
            try:
                number += 1
                yield number
            except GeneratorExit:
                yield -1

    async with agent.running(settings):
        async for number in bus.stream("stubborn.count"):
            if number == 5:
                break
        assert await anext(bus.stream("stubborn.count", timeout_s=5).__aiter__()) == 1


async def test_a_draft_that_could_never_be_sent_is_refused_at_once(bus: Bus) -> None:
    for wrong in ({"window": 0}, {"timeout_s": -1}, {"version": "x"}):
        with pytest.raises(ValueError, match="must be"):
            bus.stream("report.write", {}, **wrong)
    for after, call_id in ((-1, "c"), (0, "")):
        with pytest.raises(ValueError, match="resumed"):
            bus.resume(call_id, after=after)
