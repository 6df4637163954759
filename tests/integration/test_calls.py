"""Calls on a real broker: results, refusals, deadlines, keys, batches, versions (REG-4, REG-5, TOOL-2 to TOOL-6)."""

from __future__ import annotations

import asyncio
import contextvars
import time
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from bus import (
    Agent,
    Bus,
    BusError,
    Call,
    CallDraft,
    RegistryError,
    Rejected,
    RetryLater,
    Settings,
    ToolError,
)
from bus.broker.records import Records
from bus.broker.streams import StreamNames


class Sum(BaseModel):
    sum: float


def calculator(**options: Any) -> Agent:
    agent = Agent("alice", **options)

    @agent.capability("calculator.add", example={"a": 1, "b": 2}, idempotent=True)
    async def add(a: float, b: float) -> Sum:
        """Adds two numbers."""
        return Sum(sum=a + b)

    return agent


async def test_a_call_gives_data_and_says_how_long_the_work_took(bus: Bus, settings: Settings) -> None:
    async with calculator().running(settings):
        result = await bus.call("calculator.add", {"a": 1, "b": 2})
    assert result.data == {"sum": 3.0}
    assert result.meta["tool_name"] == "calculator.add"
    assert result.meta["tool_version"] == "1.0.0"
    assert len(result.meta["trace_id"]) == 32
    assert 0 <= result.meta["elapsed_ms"] < 1000


async def test_what_cannot_be_called_is_told_at_once(bus: Bus, settings: Settings) -> None:
    async with calculator().running(settings):
        await bus.call("calculator.add", {"a": 1, "b": 2})
        started = time.monotonic()
        with pytest.raises(RegistryError, match=r"did you mean calculator\.add") as absent:
            await bus.call("calculator.ad", {})
        assert absent.value.info.details["nearest"] == ["calculator.add"]
        with pytest.raises(RegistryError) as stranger:
            await bus.call("calculator.add", {}, agent="nobody")
        assert stranger.value.info.code == "registry.agent_not_found"
        with pytest.raises(Rejected):
            await bus.call("calculator.add", {"a": "x"})
        assert time.monotonic() - started < 2


async def test_a_refusal_carries_paths_schema_instruction_and_bounded_repairs(bus: Bus, settings: Settings) -> None:
    async with calculator().running(settings):
        left, seen, details = 3, list[int](), dict[str, Any]()
        for _ in range(4):
            with pytest.raises(Rejected) as refused:
                await bus.call("calculator.add", {"a": "one", "bb": 2}, repairs_left=left)
            details = dict(refused.value.info.details)
            left = details["repairs_left"]
            seen.append(left)
            assert {one["path"] for one in details["errors"]} == {"arguments", "arguments.a"}
            assert details["schema"]["required"] == ["a", "b"]
            assert "did you mean `b`" in details["instruction"]
        assert seen == [2, 1, 0, 0]
        assert "Do not call it again" in details["instruction"]
        # The same, before anything is sent.
        with pytest.raises(Rejected) as early:
            await bus.call("calculator.add", {"a": "one"}, validate=True)
        assert early.value.info.details["started"] is False


async def test_lenient_capabilities_say_what_they_read_otherwise(bus: Bus, settings: Settings) -> None:
    agent = Agent("alice")

    @agent.capability("age.next", description="One more.", lenient=True)
    async def following(age: int) -> int:
        return age + 1

    async with agent.running(settings):
        result = await bus.call("age.next", {"age": "26"})
    assert (result.data, result.meta["coerced"]) == (27, ["arguments.age"])


async def test_what_a_capability_raises_is_one_error(bus: Bus, settings: Settings) -> None:
    agent = Agent("alice")

    @agent.capability("fail.how", description="Fails.")
    async def fail(how: str) -> int:
        match how:
            case "later":
                raise RetryLater(0.01)
            case "exit":
                raise SystemExit(3)
            case "cancel":
                raise asyncio.CancelledError
            case "result":
                return "no number"  # type: ignore[return-value]
            case "nan":
                return float("nan")  # type: ignore[return-value]
            case "context":
                contextvars.ContextVar[int]("left").set(1)
                return 1
        raise KeyError(how)

    codes = {}
    async with agent.running(settings):
        for how in ("later", "exit", "cancel", "result", "nan", "other", "context"):
            try:
                await bus.call("fail.how", {"how": how}, timeout_s=5)
            except BusError as problem:
                codes[how] = problem.info.code
        assert (await bus.call("fail.how", {"how": "context"})).data == 1
    assert codes == {
        "later": "tool.execution_failed",
        "exit": "tool.execution_failed",
        "cancel": "tool.execution_failed",
        "result": "tool.invalid_result",
        "nan": "tool.invalid_result",
        "other": "tool.execution_failed",
    }


async def test_the_timeout_of_a_card_ends_the_work_and_the_replica_goes_on(bus: Bus, settings: Settings) -> None:
    agent, ended = Agent("alice", call_concurrency=1), asyncio.Event()

    @agent.capability("sleep.long", description="Sleeps.", timeout_s=0.2)
    async def long(seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
        finally:
            ended.set()
        return "slept"

    async with agent.running(settings):
        with pytest.raises(ToolError) as late:
            await bus.call("sleep.long", {"seconds": 30})
        assert late.value.info.code == "tool.timeout"
        assert ended.is_set()
        assert (await bus.call("sleep.long", {"seconds": 0})).data == "slept"


async def test_a_caller_that_is_cancelled_cancels_the_work(bus: Bus, settings: Settings) -> None:
    agent, began, ended = Agent("alice"), asyncio.Event(), asyncio.Event()

    @agent.capability("sleep.long", description="Sleeps.", timeout_s=60)
    async def long() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async with agent.running(settings):
        calling = asyncio.create_task(bus.call("sleep.long"))
        await asyncio.wait_for(began.wait(), 10)
        calling.cancel()
        await asyncio.wait_for(ended.wait(), 5)


async def test_a_thousand_callers_against_a_full_queue_all_get_an_answer(bus: Bus, settings: Settings) -> None:
    agent = Agent("alice", call_concurrency=2)

    @agent.capability("slow.work", description="Is slow.", idempotent=True)
    async def slow(n: int) -> int:
        await asyncio.sleep(0.01)
        return n

    limited = settings.model_copy(update={"max_call_queue": 20})
    async with agent.running(limited):
        await bus.call("slow.work", {"n": 0})
        drafts = [CallDraft("slow.work", {"n": n}, id=str(n), timeout_s=20) for n in range(1000)]
        started = time.monotonic()
        results = await asyncio.wait_for(bus.call_many(drafts, in_flight=1000), 25)
        assert time.monotonic() - started < 20
    assert list(results) == [str(n) for n in range(1000)]
    done = [name for name, result in results.items() if result.ok]
    assert all(results[name].data == int(name) for name in done)
    busy = [result.error for result in results.values() if result.error is not None]
    assert {one.code for one in busy} == {"agent.busy"}
    assert all(one.retry_after_ms for one in busy)
    assert len(done) >= 20


async def test_busy_agents_are_passed_over(bus: Bus, settings: Settings) -> None:
    began, release = asyncio.Event(), asyncio.Event()

    def worker(name: str) -> Agent:
        agent = Agent(name, call_concurrency=1)

        @agent.capability("slow.work", description="Is slow.")
        async def slow(wait: bool) -> str:
            if wait:
                began.set()
                await release.wait()
            return name

        return agent

    tight = settings.model_copy(update={"max_call_queue": 1})
    async with worker("one").running(tight), worker("two").running(settings):
        held = [asyncio.create_task(bus.call("slow.work", {"wait": True}, agent="one"))]
        await asyncio.wait_for(began.wait(), 10)
        held.append(asyncio.create_task(bus.call("slow.work", {"wait": False}, agent="one")))
        await asyncio.sleep(0)
        with pytest.raises(ToolError) as busy:
            await bus.call("slow.work", {"wait": False}, agent="one")
        assert busy.value.info.code == "agent.busy"
        assert {(await bus.call("slow.work", {"wait": False})).data for _ in range(4)} == {"two"}
        release.set()
        assert [one.data for one in await asyncio.gather(*held)] == ["one", "one"]


async def test_the_deadline_shrinks_on_the_way(bus: Bus, settings: Settings) -> None:
    alice, bob = Agent("alice"), Agent("bob")

    @bob.capability("inner.left", description="What is left.", timeout_s=60)
    async def inner(call: Call) -> float:
        return call.remaining_s

    @alice.capability("outer.left", description="What is left.", timeout_s=60)
    async def outer(call: Call) -> dict[str, Any]:
        await asyncio.sleep(0.3)
        below = await call.call("inner.left", {}, timeout_s=50)
        return {"inner": below.data, "trace": below.meta["trace_id"] == call.trace_id, "from": call.sender}

    async with alice.running(settings), bob.running(settings):
        result = await bus.call("outer.left", timeout_s=4)
    assert 0 < result.data["inner"] < 3.75
    assert result.data["trace"]
    assert result.data["from"] == "tester"


async def test_a_notification_is_done_and_never_answered(bus: Bus, settings: Settings) -> None:
    agent, seen = Agent("alice"), asyncio.Queue[str]()

    @agent.capability("note.take", description="Takes a note.")
    async def take(text: str) -> None:
        await seen.put(text)

    async with agent.running(settings):
        assert await bus.notify("note.take", {"text": "hi"})
        assert await asyncio.wait_for(seen.get(), 10) == "hi"
        with pytest.raises(RegistryError):
            await bus.notify("note.give", {})


async def test_large_arguments_and_results_travel_by_reference_and_cut_ones_say_where_the_rest_is(
    bus: Bus, settings: Settings
) -> None:
    agent = Agent("alice")

    @agent.capability("text.double", description="Doubles.", idempotent=True)
    async def double(text: str) -> str:
        return text * 2

    async with agent.running(settings):
        text = "x" * 400_000
        assert (await bus.call("text.double", {"text": text})).data == text * 2
        cut = await bus.call("text.double", {"text": text}, max_result_bytes=1000)
    assert len(cut.data) <= 1000
    whole = await bus.artifacts.get(cut.meta["whole"]["sha256"])
    assert orjson.loads(whole) == text * 2


async def test_two_versions_of_one_capability_live_side_by_side(bus: Bus, settings: Settings) -> None:
    def replica(version: str, accepts: tuple[str, ...] = ()) -> Agent:
        agent = Agent("alice")

        @agent.capability("report.make", description="Reports.", version=version, accepts=accepts)
        async def make() -> str:
            return version

        return agent

    async with replica("1.2.0").running(settings), replica("2.0.0").running(settings):
        for wanted, answered in (("1", "1.2.0"), ("1.2", "1.2.0"), ("2", "2.0.0")):
            assert {(await bus.call("report.make", version=wanted)).data for _ in range(8)} == {answered}
        with pytest.raises(RegistryError) as none:
            await bus.call("report.make", version="3")
        assert none.value.info.details["theirs"] == ["1.2.0", "2.0.0"]
    async with replica("2.0.0", ("1.2.0",)).running(settings):
        assert (await bus.call("report.make", version="1.1")).data == "2.0.0"


async def test_a_stop_deregisters_first_and_finishes_what_is_in_hand(bus: Bus, settings: Settings) -> None:
    agent, began = Agent("alice"), asyncio.Event()

    @agent.capability("slow.work", description="Is slow.")
    async def slow() -> str:
        began.set()
        await asyncio.sleep(0.5)
        return "done"

    async with agent.running(settings):
        calling = asyncio.create_task(bus.call("slow.work"))
        await asyncio.wait_for(began.wait(), 10)
    assert (await calling).data == "done"
    assert await bus.capabilities.find() == []
    with pytest.raises(RegistryError):
        await bus.call("slow.work")


async def test_garbage_in_the_registry_is_skipped_with_a_line(
    bus: Bus, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    leases = Records(bus.connection, StreamNames.of(settings.namespace).registry, writer="")
    for key, value in (
        ("nonsense", b"x"),
        ("lease.mallory.i1", b"\xff\xfe"),
        ("lease.mallory.i2", b'{"agent": "alice", "instance": "i2"}'),
        ("cards.mallory.0000", b"[]"),
        ("lease.alice.i3.extra", b"{}"),
    ):
        await leases.write(key, value, ttl_s=60, after=None)
    async with calculator().running(settings):
        assert [one.agent for one in await bus.capabilities.find()] == ["alice"]
        assert (await bus.call("calculator.add", {"a": 1, "b": 2})).ok
    assert sum("is skipped" in one.message for one in caplog.records) == 5


async def test_checks_refuse_before_the_arguments_are_looked_at(bus: Bus, settings: Settings) -> None:
    async def only_adults(asked: Any, envelope: Any, card: Any) -> None:
        raise Rejected("auth.permission_denied", f"{envelope.sender} may not use {card.name}")

    async with calculator(call_checks=[only_adults]).running(settings):
        with pytest.raises(Rejected, match=r"tester may not use calculator\.add"):
            await bus.call("calculator.add", {"nonsense": True})


async def test_a_foreign_caller_needs_no_library(bus: Bus, settings: Settings) -> None:
    """A request written by hand, as the wire specification has it; and bytes that are none."""
    async with calculator().running(settings):
        subject = f"{settings.namespace}.v1.call.alice.curl.calculator.add"
        request = {
            "version": "1.2", "message_id": "m1", "trace_id": "t1", "from": "curl", "to": "alice",
            "type": "tool_call_request",
            "payload": {"tool_call_id": "call_abc123", "tool_name": "calculator.add", "arguments": {"a": 1, "b": 2}},
        }  # fmt: skip
        answer = orjson.loads((await bus.connection.request(subject, orjson.dumps(request))).data)
        assert answer["type"] == "tool_call_result"
        assert answer["payload"]["tool_call_id"] == "call_abc123"
        assert answer["payload"]["data"] == {"sum": 3.0}
        forged = orjson.dumps({**request, "from": "root"})
        for bad, code in ((b"\xff", "protocol.malformed"), (forged, "auth.unverified_sender")):
            answer = orjson.loads((await bus.connection.request(subject, bad)).data)
            assert answer["payload"]["error"]["code"] == code


async def test_a_burst_of_calls_that_need_each_other_runs_at_once(bus: Bus, settings: Settings) -> None:
    """One worker answers what waits for nothing; once a call waits, no other waits behind it (REG-5)."""
    agent = Agent("alice", call_concurrency=20)
    together = asyncio.Barrier(20)

    @agent.capability("meeting.attend", description="Ends when all are there, unless it is told to go.")
    async def attend(stays: bool) -> int:
        return (await together.wait()) if stays else -1

    async with agent.running(settings):
        drafts = [CallDraft("meeting.attend", {"stays": number % 3 > 0}, timeout_s=10) for number in range(30)]
        results = await bus.call_many(drafts)
    assert sorted(one.unwrap() for one in results.values()) == [-1] * 10 + list(range(20))
