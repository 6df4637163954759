"""Checkpoints and rollback: what was in flight runs again on the state of then, what is late does not count (WF-2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from bus import Agent, Bus, Envelope, Message, Settings, ToolError
from bus.broker.connection import Connection
from bus.broker.records import Records
from bus.broker.streams import StreamNames
from bus.broker.survey import waiting_messages
from bus.testing import settled
from bus.workflow.branches import branch_now
from bus.workflow.control import ControlWatch
from bus.workflow.handle import WorkflowHandle
from bus.workflow.rollback import Rollback, Rollbacks
from bus.workflow.story import State

BEGINNING = datetime.fromtimestamp(0, UTC)


class Line:
    """A planner and a writer: the planner asks for three drafts, the writer puts each into the document."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.runs: list[str] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.waiting = asyncio.Event()
        self.version = "1"
        self.planner, self.writer = Agent("planner"), Agent("writer")
        self.planner.on("plan")(self.plan)
        self.writer.on("draft")(self.draft)

    async def plan(self, _: Any, message: Message) -> None:
        await message.workflow.enter("plan")
        await message.state.update("plan", lambda _: {"parts": 3})
        for part in range(3):
            await message.send("writer", "draft", {"part": part}, key=str(part))
        await message.workflow.leave("plan")

    async def draft(self, payload: dict[str, int], message: Message) -> None:
        part = str(payload["part"])
        self.waiting.set()
        await self.hold.wait()
        self.runs.append(f"{part}.{self.version}")
        version = self.version
        document = await message.state.update("text", lambda before: {**(before or {}), part: version})
        if len(document) == 3:
            await message.send("*", "ready", document, message_id=f"ready-{message.workflow_id}")


@pytest.fixture
async def line(settings: Settings) -> AsyncIterator[Line]:
    one = Line(settings)
    async with one.planner.running(settings), one.writer.running(settings):
        yield one


async def ready(bus: Bus, workflow_id: str) -> list[dict[str, str]]:
    return [
        seen.envelope.payload
        async for seen in bus.watch(workflow_id=workflow_id, type="ready", since=BEGINNING, follow=False)
        if seen.envelope is not None
    ]


async def test_a_finished_workflow_is_rolled_back_and_runs_again(bus: Bus, line: Line) -> None:
    """WF-2: to the end of a phase: its drafts run again on the documents of that time, into a new branch."""
    workflow = bus.workflow("job")
    await workflow.send("planner", "plan", {})
    await settled(bus)
    assert sorted(line.runs) == ["0.1", "1.1", "2.1"]
    line.version = "2"
    done = await workflow.rollback("plan")
    await settled(bus)
    assert (done.branch, done.resumed) == (1, False)
    assert await workflow.state.read("text") == {"0": "2", "1": "2", "2": "2"}
    assert await workflow.state.read("plan") == {"parts": 3}
    old = WorkflowHandle(bus.connection, workflow.id, branch=0, writer="t")
    assert await old.state.read("text") == {"0": "1", "1": "1", "2": "1"}
    assert [one["0"] for one in await ready(bus, workflow.id)] == ["1", "2"]
    record = await workflow.record()
    assert record is not None
    assert (record.branch, record.counts["rollbacks"], record.status) == (1, 1, "running")
    assert "rolled back to plan, branch 1" in [change.what for change in record.changes]
    assert [one async for one in bus.dead_letters.list()] == []


async def test_what_runs_and_waits_is_cancelled_and_set_aside(bus: Bus, settings: Settings, line: Line) -> None:
    """WF-2: running and queued messages of the old branch count no more, and can be found."""
    line.hold.clear()
    workflow = bus.workflow("job")
    await workflow.send("planner", "plan", {})
    await asyncio.wait_for(line.waiting.wait(), 5)
    await until_checkpoint(workflow, "plan")
    await workflow.rollback("plan")
    line.hold.set()
    line.version = "2"
    await settled(bus)
    assert await workflow.state.read("text") == {"0": "2", "1": "2", "2": "2"}
    states = [(step.envelope.extensions.get("branch", 0), step.state) for step in (await bus.trace(workflow.id)).steps]
    assert states.count((0, State.SET_ASIDE)) == 3
    assert (1, State.SET_ASIDE) not in states
    assert len(await ready(bus, workflow.id)) == 1


async def until_checkpoint(workflow: WorkflowHandle, name: str) -> None:
    async with asyncio.timeout(5):
        while (await workflow.checkpoints()).get(name) is None:
            await asyncio.sleep(0.02)


async def test_a_checkpoint_on_demand_and_a_second_rollback(bus: Bus, line: Line) -> None:
    """WF-2: a handler's own message is in flight at its checkpoint; branches follow each other, also to an old one."""
    agent = Agent("counter")

    @agent.on("count")
    async def count(payload: dict[str, int], message: Message) -> None:
        await message.state.update("seen", lambda before: {"n": (before or {"n": 0})["n"] + payload["by"]})
        if payload["by"] == 1:
            await message.workflow.checkpoint("half")
            await message.send("counter", "count", {"by": 10})

    async with agent.running(line.settings):
        workflow = bus.workflow("job")
        await workflow.send("counter", "count", {"by": 1})
        await settled(bus)
        assert await workflow.state.read("seen") == {"n": 11}
        for branch in (1, 2):
            # The message that took the checkpoint runs again on what it had written, as after a crash.
            assert (await workflow.rollback("half")).branch == branch
            await settled(bus)
            assert await workflow.state.read("seen") == {"n": 1 + branch + 10}
    ids = {step.envelope.message_id for step in (await bus.trace(workflow.id)).steps}
    assert sum(one.endswith(("~1", "~2")) for one in ids) == 2


async def test_scheduled_messages_are_cancelled_and_scheduled_again(bus: Bus, settings: Settings) -> None:
    """WF-2, DEL-8: what waited for its time at the checkpoint waits in the new branch; the old one is set aside."""
    agent = Agent("late")
    seen: list[int] = []

    @agent.on("tick")
    async def tick(payload: dict[str, int]) -> None:
        seen.append(payload["n"])

    async with agent.running(settings):
        workflow = bus.workflow("job")
        await workflow.send("late", "tick", {"n": 1}, delay_s=1.5)
        await workflow.checkpoint("start")
        await workflow.send("late", "tick", {"n": 2}, delay_s=1.5)
        done = await workflow.rollback("start")
        assert done.resent == 1
        async with asyncio.timeout(10):
            while len((await bus.trace(workflow.id)).steps) < 3 or (await bus.trace(workflow.id)).waits:
                await asyncio.sleep(0.1)
    assert seen == [1]
    assert [step.state for step in (await bus.trace(workflow.id)).steps].count(State.SET_ASIDE) == 2


async def test_a_broadcast_that_was_in_flight_goes_to_who_had_not_settled_it(bus: Bus, settings: Settings) -> None:
    """WF-2, DEL-10: once more to the slow listener, not to the one that was done."""
    heard: list[str] = []
    hold, slow_began = asyncio.Event(), asyncio.Event()
    fast, slow = Agent("fast"), Agent("slow")

    @fast.on("news", broadcast=True)
    async def quickly(_: Any) -> None:
        heard.append("fast")

    @slow.on("news", broadcast=True)
    async def slowly(_: Any) -> None:
        slow_began.set()
        await hold.wait()
        heard.append("slow")

    async with fast.running(settings), slow.running(settings):
        workflow = bus.workflow("job")
        sent = await workflow.send("*", "news", {})
        await asyncio.wait_for(slow_began.wait(), 5)
        async with asyncio.timeout(5):
            while "fast" not in [a.key.agent for s in (await bus.trace(workflow.id)).steps for a in s.attempts]:
                await asyncio.sleep(0.02)
        await workflow.checkpoint("now")
        done = await workflow.rollback("now")
        hold.set()
        await settled(bus)
    assert done.resent == 1
    assert sorted(heard) == ["fast", "slow"]
    assert f"{sent.message_id}~1" in {step.envelope.message_id for step in (await bus.trace(workflow.id)).steps}


async def test_what_cannot_be_rolled_back_says_why_and_changes_nothing(bus: Bus, line: Line) -> None:
    """WF-2: no such checkpoint, content expired, history expired, completions expired."""
    workflow = bus.workflow("job")
    await workflow.send("planner", "plan", {})
    await settled(bus)
    names = StreamNames.of(bus.connection.settings.namespace)
    js = bus.connection.jetstream()
    with pytest.raises(ToolError, match=r"there is no such checkpoint; there are plan\. Nothing was changed"):
        await workflow.rollback("nothing")
    await js.purge_stream(names.done)
    with pytest.raises(ToolError, match=r"completions of \d of its messages have expired"):
        await workflow.rollback("plan")
    await bus.send("nobody", "x", {})
    await js.purge_stream(names.history, keep=1)
    with pytest.raises(ToolError, match=r"the history before .* has expired"):
        await workflow.rollback("plan")
    await js.purge_stream(f"OBJ_{names.artifacts}")
    with pytest.raises(ToolError, match="what it kept has expired"):
        await workflow.rollback("plan")
    record = await workflow.record()
    assert record is not None
    assert record.branch == 0
    assert await Rollbacks(bus.connection, workflow.id).unfinished() is None


async def test_an_unfinished_rollback_is_finished_by_the_next(bus: Bus, line: Line) -> None:
    """WF-2: killed after the decision, wherever: once more finishes it, and nothing is done twice."""
    workflow = bus.workflow("job")
    await workflow.send("planner", "plan", {})
    await settled(bus)
    line.version = "2"
    with pytest.raises(KeyboardInterrupt):
        await Dies(bus.connection, workflow.id, writer="killed").to("plan")
    assert await Rollbacks(bus.connection, workflow.id).unfinished() == "plan"
    first = await workflow.rollback("plan")
    assert (first.resumed, first.branch) == (True, 1)
    await settled(bus)
    assert await workflow.state.read("text") == {"0": "2", "1": "2", "2": "2"}
    assert len([run for run in line.runs if run.endswith("2")]) == 3


class Dies(Rollbacks):
    """Is gone as soon as the rollback is decided."""

    __slots__ = ()

    async def _finish(self, plan: dict[str, Any]) -> Rollback:
        raise KeyboardInterrupt


async def test_two_who_roll_back_at_once_conflict(bus: Bus, line: Line) -> None:
    """WF-2, WF-3: one of them wins, the other hears of both, and the result is whole."""
    workflow = bus.workflow("job")
    await workflow.send("planner", "plan", {})
    await settled(bus)
    line.version = "2"
    tries = [Rollbacks(bus.connection, workflow.id, writer=name).to("plan") for name in ("anna", "bert")]
    results = await asyncio.gather(*tries, return_exceptions=True)
    await settled(bus)
    problems = [one for one in results if isinstance(one, ToolError)]
    assert len(problems) <= 1
    for problem in problems:
        assert {problem.info.details["theirs"]["writer"], problem.info.details["ours"]["writer"]} == {"anna", "bert"}
    assert await workflow.state.read("text") == {"0": "2", "1": "2", "2": "2"}


async def test_an_old_branch_leaves_no_mark(bus: Bus) -> None:
    """WF-2: who has not heard of the rollback changes neither record nor checkpoints of the new branch."""
    workflow = bus.workflow("job")
    await workflow.send("nobody", "x", {})
    await workflow.checkpoint("start")
    old = WorkflowHandle(bus.connection, workflow.id, branch=0, writer="old")
    await workflow.rollback("start")
    for act in (lambda: old.enter("plan"), lambda: old.checkpoint("start"), lambda: old.end("error")):
        with pytest.raises(ToolError, match="was rolled back"):
            await act()
    await old.state.update("d", lambda _: {"by": "old"})
    assert await workflow.state.read("d") is None
    watch = ControlWatch(bus.connection)
    await watch.start()
    control = watch.of(workflow.id)
    await watch.stop()
    assert control is not None
    assert control.branch == 1


class Crashing:
    """A connection whose process dies at its n-th request: after that nothing is asked any more."""

    def __init__(self, connection: Connection, requests: int) -> None:
        self._connection = connection
        self.left = requests

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def request(self, *arguments: Any, **options: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise CrashError
        # The request may arrive, or its answer be lost: the process is gone in either case.
        answer = await self._connection.request(*arguments, **options)
        if self.left == 0:
            raise CrashError
        return answer


class CrashError(BaseException):
    """The end of a process, as far as a test in one process can have it."""


async def test_a_rollback_that_dies_at_any_request_is_finished_or_never_was(bus: Bus) -> None:
    """WF-2: killed at each request in turn; either nothing has changed, or doing it again finishes it."""
    requests, died, decided = 0, True, 0
    while died:
        requests += 1
        workflow = bus.workflow("job")
        for n in (1, 2):
            await workflow.send("sleeper", "work", {"n": n})
        await workflow.state.update("text", lambda _: {"n": 1})
        await workflow.checkpoint("start")
        await workflow.state.update("text", lambda _: {"n": 2})
        dying = Rollbacks(Crashing(bus.connection, requests), workflow.id, writer="dying")  # type: ignore[arg-type]
        try:
            await dying.to("start")
            died = False
        except CrashError:
            pass
        unfinished = await Rollbacks(bus.connection, workflow.id).unfinished()
        branch = await branch_now(records(bus), workflow.id)
        if died and branch == 0:
            assert await workflow.state.read("text") == {"n": 2}
            assert await waiting(bus, workflow.id) == [(0, 1), (0, 2)]
        decided += branch
        if died and unfinished is not None:
            assert (await workflow.rollback("start")).resumed
        elif branch == 0:
            await workflow.rollback("start")
        assert await workflow.state.read("text") == {"n": 1}
        record = await workflow.record()
        assert record is not None
        assert record.branch == 1
        assert await waiting(bus, workflow.id) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert requests > 8
    assert decided > 3


def records(bus: Bus) -> Records:
    return Records(bus.connection, StreamNames.of(bus.connection.settings.namespace).workflows)


async def waiting(bus: Bus, workflow_id: str) -> list[tuple[int, int]]:
    """What waits, with its branch, by what the stream holds."""
    envelopes = [Envelope.decode(one.data) async for one in waiting_messages(bus.connection)]
    return sorted(
        (one.extensions.get("branch", 0), one.payload["n"]) for one in envelopes if one.workflow_id == workflow_id
    )
