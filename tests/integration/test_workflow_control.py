"""What people decide about a workflow reaches every replica: of branches that were left nothing is handled (WF-2)."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from bus import Agent, Bus, Message, Settings, ToolError
from bus.broker.connection import Connection
from bus.broker.records import Records
from bus.broker.streams import StreamNames
from bus.testing import settled
from bus.workflow.branches import branch_key
from bus.workflow.control import ControlWatch
from bus.workflow.handle import WorkflowHandle
from bus.workflow.story import State


async def decide(bus: Bus, workflow_id: str, branch: int) -> None:
    records = Records(bus.connection, StreamNames.of(bus.connection.settings.namespace).workflows)
    document = {"workflow_id": workflow_id, "branch": branch}
    await records.write(branch_key(workflow_id), orjson.dumps(document), after=None)


async def test_what_is_of_an_old_branch_is_set_aside_and_found(bus: Bus, settings: Settings) -> None:
    """WF-2: queued before the decision and delivered after it, also to a replica that starts later."""
    handled: list[int] = []
    agent = Agent("worker")

    @agent.on("step")
    async def step(payload: dict[str, int]) -> None:
        handled.append(payload["n"])

    old, other = bus.workflow("old.one"), bus.workflow("other")
    await old.send("worker", "step", {"n": 1})
    await decide(bus, old.id, 1)
    await other.send("worker", "step", {"n": 2})
    await bus.send("worker", "step", {"n": 3}, workflow_id=old.id, extensions={"branch": 1})
    async with agent.running(settings):
        await settled(bus)
    assert sorted(handled) == [2, 3]
    states = {step.envelope.payload["n"]: step.state for step in (await bus.trace(old.id)).steps}
    assert states == {1: State.SET_ASIDE, 3: State.HANDLED}
    assert [one async for one in bus.dead_letters.list()] == []


async def test_a_running_handler_of_an_old_branch_is_cancelled(bus: Bus, settings: Settings) -> None:
    """WF-2: cancelled where it stands, then set aside; a neighbour in the same replica goes on."""
    began, ends, cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()
    agent = Agent("worker")

    @agent.on("step")
    async def step(payload: dict[str, Any], message: Message) -> None:
        if payload["waits"]:
            began.set()
            try:
                await asyncio.sleep(20)
            except asyncio.CancelledError:
                cancelled.set()
                raise
        await ends.wait()

    async with agent.running(settings):
        workflow, neighbour = bus.workflow("job"), bus.workflow("neighbour")
        await neighbour.send("worker", "step", {"waits": False})
        await workflow.send("worker", "step", {"waits": True})
        await asyncio.wait_for(began.wait(), 5)
        await decide(bus, workflow.id, 1)
        await asyncio.wait_for(cancelled.wait(), 5)
        ends.set()
        await settled(bus)
    assert [step.state for step in (await bus.trace(workflow.id)).steps] == [State.SET_ASIDE]
    assert [step.state for step in (await bus.trace(neighbour.id)).steps] == [State.HANDLED]


async def test_a_handler_of_an_old_branch_sends_nothing_more(bus: Bus, settings: Settings) -> None:
    """WF-2: one that swallows its cancellation is refused where it sends and calls, and becomes no dead letter."""
    began = asyncio.Event()
    refusals: list[str] = []
    agent = Agent("worker")

    @agent.on("step")
    async def step(_: Any, message: Message) -> None:
        began.set()
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            try:
                await message.send("tester", "late", {})
            except ToolError as problem:
                refusals.append(problem.info.code)
                raise

    async with agent.running(settings):
        workflow = bus.workflow("job")
        await workflow.send("worker", "step", {})
        await asyncio.wait_for(began.wait(), 5)
        await decide(bus, workflow.id, 1)
        await settled(bus)
    assert refusals == ["tool.cancelled"]
    assert [(step.envelope.type, step.state) for step in (await bus.trace(workflow.id)).steps] == [
        ("step", State.SET_ASIDE)
    ]


async def test_a_refusal_belongs_to_the_branch_of_what_was_refused(bus: Bus, settings: Settings) -> None:
    """WF-2, DEL-4: the sender in a later branch hears of it."""
    heard: list[str] = []
    agent, sender = Agent("worker"), Agent("sender")

    @sender.on("error")
    async def error(payload: dict[str, Any]) -> None:
        heard.append(payload["error"]["code"])

    @sender.on("go")
    async def go(_: Any, message: Message) -> None:
        await message.send("worker", "unknown", {})

    async with agent.running(settings), sender.running(settings):
        workflow = bus.workflow("job")
        await decide(bus, workflow.id, 1)
        await bus.send("sender", "go", {}, workflow_id=workflow.id, extensions={"branch": 1})
        await settled(bus)
    assert heard == ["protocol.no_handler"]


async def test_a_bucket_of_an_older_release_gets_what_slots_need(settings: Settings) -> None:
    """WF-1: made as older releases made it, it is changed in place and keeps its documents."""
    connection = await Connection.open(settings, name="old")
    try:
        names = StreamNames.of(settings.namespace)
        js = connection.jetstream()
        bucket = await js.create_key_value(bucket=names.workflows, ttl=30 * 86400, direct=True)
        await bucket.put("w.plan", b'{"n": 1}')
    finally:
        await connection.close()
    async with Bus.connect("new", settings=settings) as bus:
        handle = WorkflowHandle(bus.connection, "w", branch=0, writer="t")
        async with handle.slot("draft", ttl_s=1):
            assert await handle.state.update("plan", lambda document: {"n": (document or {})["n"] + 1}) == {"n": 2}


async def test_the_watch_follows_and_forgets(bus: Bus) -> None:
    """WF-2: it knows what stands there when it starts, what comes, and that a decision is taken back."""
    heard: list[tuple[str, int]] = []
    watch = ControlWatch(bus.connection, decided=lambda workflow, control: heard.append((workflow, control.branch)))
    await decide(bus, "a.b", 1)
    await watch.start()
    try:
        assert heard == [("a.b", 1)]
        await decide(bus, "c", 2)
        records = Records(bus.connection, StreamNames.of(bus.connection.settings.namespace).workflows)
        await records.write("d.control.branch", b"no JSON", after=None)
        await records.take_away(branch_key("a.b"))
        async with asyncio.timeout(5):
            while len(heard) < 3:
                await asyncio.sleep(0.01)
        assert heard[1:] == [("c", 2), ("a.b", 0)]
        assert watch.of("a.b") is None
        assert watch.of("d") is None
        assert watch.of(None) is None
        control = watch.of("c")
        assert control is not None
        assert control.branch == 2
    finally:
        await watch.stop()
