"""Tasks on a real broker: their life, their end, and who may come in between (REG-8, TOOL-5)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from bus import (
    Agent,
    Bus,
    Call,
    Envelope,
    Message,
    RegistryError,
    Rejected,
    RetryLater,
    RetryPolicy,
    Settings,
    ToolError,
)
from bus.broker.survey import agent_queues
from bus.calls.control import Presence, Verb, Word, presence
from bus.calls.tasks.record import TaskState
from tests.integration.desk import Desk


async def test_a_long_call_is_answered_pending_and_its_result_is_there_later(bus: Bus, settings: Settings) -> None:
    """REG-8: the answer comes at once, the work goes on, any process can ask for it by its id."""
    desk = Desk()
    async with desk.agent.running(settings):
        started = time.monotonic()
        answer = await bus.call("report.write", {"topic": "buses"})
        assert time.monotonic() - started < 2
        assert answer.is_pending
        assert answer.data is None
        task = bus.task(answer.meta["task_id"])
        assert await desk.began.get() == "buses"
        assert (await task.status()).state is TaskState.RUNNING
        with pytest.raises(ToolError, match="it goes on") as early:
            await task.result(timeout_s=0.05)
        assert early.value.info.code == "tool.timeout"
        async with Bus.connect("other", settings=settings) as other:
            waiting = asyncio.create_task(other.task(task.id).result(timeout_s=10))
            await asyncio.sleep(0)
            desk.go.set()
            result = await waiting
        record = await task.status()
        assert result.data == "all about buses"
        assert (result.meta["tool_name"], result.meta["task_id"]) == ("report.write", task.id)
        assert (record.state, record.attempts, record.sender) == (TaskState.SUCCEEDED, 1, "tester")
        with pytest.raises(Rejected, match=r"arguments\.topic|`topic` is missing"):
            await bus.call("report.write", {})


async def test_any_capability_can_be_submitted(bus: Bus, settings: Settings) -> None:
    """REG-8, TOOL-3: through the same gates; what fails is told by the result."""
    desk = Desk()
    async with desk.agent.running(settings):
        assert (await (await bus.submit("report.quick", {"topic": "x"})).result(timeout_s=10)).data == "x"
        wrong = await (await bus.submit("report.quick", {"topic": 1})).outcome(timeout_s=10)
        assert wrong.error is not None
        assert wrong.error.code == "tool.validation_failed"
        assert wrong.error.details["errors"][0]["path"] == "arguments.topic"
        with pytest.raises(Rejected, match="topic"):
            await bus.submit("report.quick", {"topic": 1}, validate=True)
        with pytest.raises(RegistryError, match="did you mean"):
            await bus.submit("report.quik", {})
        with pytest.raises(ToolError, match="there is no task"):
            await bus.task("nothing of the kind").status()


async def test_the_same_key_is_the_same_task(bus: Bus, settings: Settings) -> None:
    """TOOL-5: submitted or called, before and after its end; other arguments are refused."""
    desk = Desk()
    async with desk.agent.running(settings):
        first = await bus.submit("report.write", {"topic": "a"}, idempotency_key="k")
        again = await bus.submit("report.write", {"topic": "a"}, idempotency_key="k")
        called = await bus.call("report.write", {"topic": "a"}, idempotency_key="k")
        assert first.id == again.id == called.meta["task_id"]
        desk.go.set()
        await first.result(timeout_s=10)
        assert (await bus.submit("report.write", {"topic": "a"}, idempotency_key="k")).id == first.id
        with pytest.raises(Rejected, match="other arguments"):
            await bus.submit("report.write", {"topic": "b"}, idempotency_key="k")
        async with Bus.connect("somebody", settings=settings) as other:
            assert (await other.submit("report.write", {"topic": "a"}, idempotency_key="k")).id != first.id
    assert desk.runs == 2


async def test_a_task_waits_for_an_agent_that_is_away(bus: Bus, settings: Settings) -> None:
    """REG-8: named, it need not be there; cancelled meanwhile it never runs, late it has expired."""
    kept = await bus.submit("report.quick", {"topic": "kept"}, agent="writer")
    dropped = await bus.submit("report.quick", {"topic": "dropped"}, agent="writer")
    late = await bus.submit("report.quick", {"topic": "late"}, agent="writer", timeout_s=0.2)
    assert (await kept.status()).state is TaskState.QUEUED
    assert (await dropped.cancel()).state is TaskState.CANCELLED
    expired = await late.outcome()
    assert expired.error is not None
    assert expired.error.code == "protocol.expired"
    desk = Desk()
    async with desk.agent.running(settings):
        assert (await kept.result(timeout_s=10)).data == "kept"
    gone = await dropped.outcome(timeout_s=10)
    assert gone.error is not None
    assert gone.error.code == "tool.cancelled"
    assert {record.state for record in await bus.tasks()} == {
        TaskState.SUCCEEDED, TaskState.CANCELLED, TaskState.FAILED,
    }  # fmt: skip


async def test_what_may_be_tried_again_is_and_the_rest_has_failed(bus: Bus, settings: Settings) -> None:
    """DEL-3, REG-8: by the error's own word, as often as the policy says; no dead letter for an ordinary failure."""
    agent = Agent("tester2", retry=RetryPolicy(max_attempts=3, base_s=0.01))
    seen: dict[str, list[int]] = {"later": [], "never": [], "once": []}

    @agent.capability("flaky.do", description="Fails.", long=True)
    async def do(call: Call, how: str) -> int:
        seen[how].append(call.attempt)
        if how == "later" or (how == "once" and call.attempt == 1):
            raise RetryLater(0.01)
        if how == "never":
            raise ValueError("no")
        return call.attempt

    async with agent.running(settings):
        outcomes = {how: await (await bus.submit("flaky.do", {"how": how})).outcome(timeout_s=10) for how in seen}
    assert seen == {"later": [1, 2, 3], "never": [1], "once": [1, 2]}
    assert outcomes["once"].data == 2
    assert {how: one.error.code for how, one in outcomes.items() if one.error} == {
        "later": "tool.execution_failed", "never": "tool.execution_failed",
    }  # fmt: skip
    assert [letter async for letter in bus.dead_letters.list()] == []


async def test_a_run_that_takes_too_long_is_ended(bus: Bus, settings: Settings) -> None:
    """REG-5: by the card for one run, by the task's own time for all of them."""
    agent, ended = Agent("slow", retry=RetryPolicy(max_attempts=2, base_s=0.01)), list[str]()

    @agent.capability("slow.do", description="Slow.", timeout_s=0.2)
    async def do() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("x")

    async with agent.running(settings):
        task = await bus.submit("slow.do", {})
        outcome = await task.outcome(timeout_s=10)
        assert outcome.error is not None
        assert outcome.error.code == "tool.timeout"
        assert ((await task.status()).attempts, len(ended)) == (2, 2)


async def test_large_arguments_and_results_go_by_reference(bus: Bus, settings: Settings) -> None:
    """DEL-9, TOOL-6: over the inline limit, there and back."""
    agent = Agent("echo")

    @agent.capability("echo.large", description="Doubles.", long=True)
    async def large(text: str) -> str:
        return text * 2

    text = "x" * 400_000
    async with agent.running(settings):
        task = await bus.submit("echo.large", {"text": text})
        assert (await task.result(timeout_s=20)).data == text * 2
        assert (await task.status()).data_ref is not None


async def test_a_stopping_replica_hands_its_task_on(bus: Bus, settings: Settings) -> None:
    """DEL-6: without counting that as an attempt."""
    first, second = Desk(), Desk()
    second.go.set()
    async with first.agent.running(settings, grace_s=0):
        task = await bus.submit("report.write", {"topic": "x"})
        await first.began.get()
    assert first.ended == ["cancelled"]
    assert (await task.status()).state is TaskState.QUEUED
    async with second.agent.running(settings):
        assert (await task.result(timeout_s=10)).data == "all about x"
    assert (await task.status()).attempts == 1


async def test_a_handler_that_runs_again_submits_the_same_task(bus: Bus, settings: Settings) -> None:
    """DEL-7: ids derived from the message that is handled."""
    desk, agent = Desk(), Agent("lead", retry=RetryPolicy(max_attempts=3, base_s=0.01))
    desk.go.set()
    ids = asyncio.Queue[str]()

    @agent.on("wanted")
    async def wanted(payload: dict[str, str], message: Message) -> None:
        task = await message.submit("report.write", payload)
        ids.put_nowait(task.id)
        if message.attempt == 1:
            raise RetryLater(0)
        await task.result(timeout_s=10)

    async with desk.agent.running(settings), agent.running(settings):
        sent = await bus.send("lead", "wanted", {"topic": "x"})
        await bus.outcome(sent, timeout_s=10)
        assert await ids.get() == await ids.get()
    assert desk.runs == 1


async def test_a_request_that_nobody_recorded_never_runs(bus: Bus, settings: Settings) -> None:
    """DEL-4, SEC-7: one without a record, and one under another task's id with other arguments."""
    desk = Desk()
    async with desk.agent.running(settings):
        task = await bus.submit("report.write", {"topic": "x"})
        await desk.began.get()
        for id, topic in (("made-up", "x"), (task.id, "stolen")):
            async with Bus.connect("thief", settings=settings) as thief:
                payload = {"tool_call_id": id, "tool_name": "report.write", "arguments": {"topic": topic}}
                sent = await thief.send("writer", "tool_call_request", payload, message_id=id)
                await thief.outcome(sent, timeout_s=10)
        codes = [letter.code async for letter in bus.dead_letters.list()]
        assert codes == ["protocol.malformed"] * 2
        desk.go.set()
        await task.result(timeout_s=10)
    assert desk.runs == 1


async def test_the_handler_of_tasks_cannot_be_taken(settings: Settings) -> None:
    """REG-8: an agent with capabilities has one already."""
    desk = Desk()

    @desk.agent.on("tool_call_request")
    async def mine(payload: dict[str, Any]) -> None:
        return

    with pytest.raises(ValueError, match="tool_call_request"):
        async with desk.agent.running(settings):
            pass


async def test_long_work_can_be_streamed_by_who_waits_for_it(bus: Bus, settings: Settings) -> None:
    """REG-7, REG-8: asked for a stream it runs at once as one; called it is a task, whose result is all its items."""
    agent, told = Agent("writer"), list[float]()

    @agent.capability("report.pages", description="Page by page.", long=True)
    async def pages(call: Call, count: int) -> AsyncIterator[int]:
        for number in range(count):
            await call.progress((number + 1) / count)
            yield number

    async with agent.running(settings):
        assert [page async for page in bus.stream("report.pages", {"count": 3})] == [0, 1, 2]
        answer = await bus.call("report.pages", {"count": 3}, on_progress=lambda at, _: told.append(at))
        assert answer.is_pending
        assert (await bus.task(answer.meta["task_id"]).result(timeout_s=10)).data == [0, 1, 2]
    assert told == []


async def test_copies_of_a_request_run_once_over_all_replicas(bus: Bus, settings: Settings) -> None:
    """REG-8, DEL-2: a foreign publisher stores it again and again, while one replica runs it."""
    first, second = Desk(task_concurrency=1), Desk(task_concurrency=1)
    subject = f"{settings.namespace}.v1.work.writer.task.tester.tool_call_request"
    async with first.agent.running(settings), second.agent.running(settings):
        task = await bus.submit("report.write", {"topic": "x"})
        async with asyncio.timeout(10):
            async for record in task.follow():
                if record.state is TaskState.RUNNING:
                    break
        ask = partial(presence, bus.connection, "writer", str(record.replica), sender="tester")
        assert await ask(word=Word(Verb.ALIVE, task.id)) is Presence.HAS_IT
        assert await ask(word=Word(Verb.ALIVE, "another")) is Presence.HAS_NOT
        payload = {"tool_call_id": task.id, "tool_name": "report.write", "arguments": {"topic": "x"}}
        copy = Envelope(
            sender="tester", to="writer", type="tool_call_request", message_id=task.id, payload=payload
        ).encode()
        for _ in range(6):
            await bus.connection.request(subject, copy)
        async with asyncio.timeout(10):
            while not any(one.redelivered for one in await agent_queues(bus.connection)):
                await asyncio.sleep(0.02)
        first.go.set()
        second.go.set()
        await task.result(timeout_s=10)
        assert first.runs + second.runs == 1
        assert (await task.status()).attempts == 1
