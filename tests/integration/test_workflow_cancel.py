"""Cancel a workflow, or what stands below one of its messages, wherever it is just now (WF-7, REG-8)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from bus import Agent, Bus, Call, Message, Settings, ToolError
from bus.testing import settled
from bus.workflow.decisions import Answer, Decisions
from bus.workflow.handle import WorkflowHandle
from bus.workflow.story import State


async def states(bus: Bus, workflow_id: str) -> list[State]:
    return [step.state for step in (await bus.trace(workflow_id)).steps]


async def test_cancelled_messages_are_settled_without_running_and_leave_a_trace(bus: Bus, settings: Settings) -> None:
    """WF-7: queued and scheduled ones, by a replica that starts after the decision; a neighbour is untouched."""
    ran: list[int] = []
    agent = Agent("worker")

    @agent.on("step")
    async def step(payload: dict[str, int]) -> None:
        ran.append(payload["n"])

    workflow, neighbour = bus.workflow("job"), bus.workflow("neighbour")
    await workflow.send("worker", "step", {"n": 1})
    await workflow.send("worker", "step", {"n": 2}, delay_s=1.2)
    await neighbour.send("worker", "step", {"n": 3})
    done = await Decisions(bus.connection, workflow.id, writer="ada").cancel(reason="wrong goal")
    assert (done.answer, done.record is not None and done.record.status) == (Answer.DONE, "cancelled")
    async with agent.running(settings):
        async with asyncio.timeout(10):
            while State.DELAYED in (found := await states(bus, workflow.id)) or State.WAITING in found:
                await asyncio.sleep(0.1)
        await settled(bus)
    assert ran == [3]
    story = await bus.trace(workflow.id)
    assert [step.state for step in story.steps] == [State.CANCELLED, State.CANCELLED]
    assert story.steps[0].attempts[-1].set_aside == "cancelled by ada (wrong goal)"
    assert [one async for one in bus.dead_letters.list()] == []


async def test_a_second_cancel_says_so_and_a_finished_workflow_stays(bus: Bus) -> None:
    """WF-7, REG-8: cancel is terminal; nothing can be begun in its name, and a finished one is not changed."""
    workflow, finished = bus.workflow("job"), bus.workflow("finished")
    await workflow.send("worker", "step", {})
    await finished.send("worker", "step", {})
    await finished.finish()
    first = await workflow.cancel(reason="no")
    again = await workflow.cancel()
    assert (first.answer, again.answer) == (Answer.DONE, Answer.ALREADY)
    assert again.decision is not None
    assert again.decision.reason == "no"
    ended = await finished.cancel()
    assert (ended.answer, ended.record is not None and ended.record.status) == (Answer.ENDED, "success")
    with pytest.raises(ToolError) as refused:
        await bus.workflow("again", workflow_id=workflow.id).send("worker", "step", {})
    assert refused.value.info.code == "tool.cancelled"


async def test_two_who_cancel_at_once_make_one_decision(bus: Bus) -> None:
    """WF-7, WF-3: one wins, the others hear whose it is."""
    workflow = bus.workflow("job")
    await workflow.send("worker", "step", {})
    done = await asyncio.gather(
        *(Decisions(bus.connection, workflow.id, writer=f"person {number}").cancel() for number in range(5))
    )
    assert sorted(one.answer for one in done) == sorted([Answer.DONE, *[Answer.ALREADY] * 4])
    assert len({one.decision.by for one in done if one.decision is not None}) == 1


@pytest.mark.parametrize("kind", ["swallows", "plain", "fails"])
async def test_what_runs_is_cancelled_and_can_do_nothing_more(bus: Bus, settings: Settings, kind: str) -> None:
    """WF-7: a handler that swallows its cancellation, a plain function, one that fails: none sends or stores."""
    began, refused = asyncio.Event(), []
    loop = asyncio.get_running_loop()
    agent = Agent("worker")

    async def try_all(message: Message) -> None:
        for attempt in (
            lambda: message.send("tester", "late", {}),
            lambda: message.state.update("late", lambda _: {}),
            lambda: message.artifacts.put(b"late", name="late"),
        ):
            try:
                await attempt()
            except ToolError as problem:
                refused.append(problem.info.code)

    if kind == "plain":

        @agent.on("step")
        def plain(_: Any, message: Message) -> None:
            loop.call_soon_threadsafe(began.set)
            asyncio.run_coroutine_threadsafe(until_cancelled(message), loop).result()
            asyncio.run_coroutine_threadsafe(try_all(message), loop).result()

    else:

        @agent.on("step")
        async def waiting_step(_: Any, message: Message) -> None:
            began.set()
            try:
                await asyncio.sleep(20)
            except asyncio.CancelledError:
                await try_all(message)
                if kind == "fails":
                    raise RuntimeError("cut off") from None

    async def until_cancelled(message: Message) -> None:
        with contextlib.suppress(ToolError):
            while True:
                await message.send("tester", "tick", {}, message_id=f"tick-{message.workflow_id}")
                await asyncio.sleep(0.05)

    async with agent.running(settings):
        workflow = bus.workflow("job")
        await workflow.send("worker", "step", {})
        await asyncio.wait_for(began.wait(), 5)
        await workflow.cancel()
        await settled(bus)
        async with asyncio.timeout(5):
            while len(refused) < 3:
                await asyncio.sleep(0.01)
    assert refused == ["tool.cancelled"] * 3
    assert (await states(bus, workflow.id))[0] is State.CANCELLED
    assert [one async for one in bus.dead_letters.list()] == []


async def test_the_calls_of_what_is_cancelled_end_too(bus: Bus, settings: Settings) -> None:
    """WF-7: a call in the course of a message, a client's own call in the workflow, and one that comes later."""
    began: list[str] = []
    ended: list[str] = []
    agent, callee = Agent("worker"), Agent("callee")

    @callee.capability("slow.work", timeout_s=20)
    async def work(who: str) -> str:
        """Takes long."""
        began.append(who)
        try:
            await asyncio.sleep(15)
        except asyncio.CancelledError:
            ended.append(who)
            raise
        return who

    @agent.on("step")
    async def step(_: Any, message: Message) -> None:
        await message.call("slow.work", {"who": "message"})

    async with agent.running(settings), callee.running(settings):
        workflow = bus.workflow("job")
        await workflow.send("worker", "step", {})
        mine = asyncio.create_task(bus.call("slow.work", {"who": "client"}, workflow_id=workflow.id))
        async with asyncio.timeout(10):
            while len(began) < 2:
                await asyncio.sleep(0.01)
        await workflow.cancel()
        with pytest.raises(ToolError) as cancelled:
            await mine
        await settled(bus)
        with pytest.raises(ToolError) as late:
            await bus.call("slow.work", {"who": "late"}, workflow_id=workflow.id)
    assert cancelled.value.info.code == late.value.info.code == "tool.cancelled"
    assert sorted(ended) == ["client", "message"]
    assert "late" not in began


async def test_a_ping_pong_is_cancelled_in_the_middle(bus: Bus, settings: Settings) -> None:
    """WF-7: two agents with two replicas each send to each other without end; it stops, and nothing is left."""
    one, other = Agent("one"), Agent("other")

    @one.on("ping")
    async def ping(payload: dict[str, int], message: Message) -> None:
        await message.send("other", "pong", {"n": payload["n"] + 1})

    @other.on("pong")
    async def pong(payload: dict[str, int], message: Message) -> None:
        await message.send("one", "ping", {"n": payload["n"] + 1})

    slow = settings.model_copy(update={"max_hops": 100_000})
    async with one.running(slow), one.running(slow), other.running(slow), other.running(slow):
        workflow = bus.workflow("endless")
        await workflow.send("one", "ping", {"n": 0})
        async with asyncio.timeout(10):
            while len(await states(bus, workflow.id)) < 20:
                await asyncio.sleep(0.02)
        await workflow.cancel()
        await settled(bus)
    found = await states(bus, workflow.id)
    # The one that waits, and perhaps the one whose handler had just sent it.
    assert 1 <= found.count(State.CANCELLED) <= 2
    assert set(found) == {State.HANDLED, State.CANCELLED}


class Tree:
    """A root that asks two branches, each of which asks two leaves, with a call in between on the left."""

    def __init__(self) -> None:
        self.root, self.branch, self.leaf, self.tool = Agent("root"), Agent("branch"), Agent("leaf"), Agent("tool")
        self.hold = asyncio.Event()
        self.left = asyncio.Event()
        self.ran: list[str] = []
        self.root.on("root")(self.on_root)
        self.branch.on("branch")(self.on_branch)
        self.leaf.on("leaf")(self.on_leaf)

        @self.tool.capability("tool.ask")
        async def ask(side: str, call: Call) -> str:
            """Asks two leaves."""
            for number in range(2):
                await call.send("leaf", "leaf", {"leaf": f"{side} {number}"})
            return side

        self.leaf.on("end")(lambda payload: None)

    async def on_root(self, _: Any, message: Message) -> None:
        for side in ("left", "right"):
            await message.send("branch", "branch", {"side": side}, message_id=f"{side}-{message.workflow_id}")

    async def on_branch(self, payload: dict[str, str], message: Message) -> None:
        self.ran.append(payload["side"])
        await message.call("tool.ask", {"side": payload["side"]})
        self.left.set()

    async def on_leaf(self, payload: dict[str, str], message: Message) -> None:
        await self.hold.wait()
        self.ran.append(payload["leaf"])
        await message.send("leaf", "end", {})


async def test_a_subtree_is_cancelled_and_its_siblings_go_on(bus: Bus, settings: Settings) -> None:
    """WF-7: below the left branch nothing runs on, also what was sent in a call; the right one comes to its end."""
    tree = Tree()
    async with (
        tree.root.running(settings),
        tree.branch.running(settings),
        tree.tool.running(settings),
        tree.leaf.running(settings),
        tree.leaf.running(settings),
    ):
        workflow = bus.workflow("tree")
        await workflow.send("root", "root", {})
        async with asyncio.timeout(10):
            while len((await bus.trace(workflow.id)).steps) < 7:
                await asyncio.sleep(0.02)
        done = await WorkflowHandle(bus.connection, workflow.id, branch=None, writer="ada").cancel(
            f"left-{workflow.id}", reason="only that"
        )
        assert done.answer is Answer.DONE
        async with asyncio.timeout(10):
            while (await states(bus, workflow.id)).count(State.CANCELLED) < 2:
                await asyncio.sleep(0.02)
        tree.hold.set()
        await settled(bus)
        await workflow.send("leaf", "leaf", {"leaf": "new"})
        await settled(bus)
    assert sorted(tree.ran) == ["left", "new", "right", "right 0", "right 1"]
    record = await workflow.record()
    assert record is not None
    assert record.status == "running"
    assert record.changes[-1].what == f"cancelled with all below left-{workflow.id}: only that"
