"""Spans as an OTLP receiver gets them: one trace a workflow, parents and phases right (OBS-1, OBS-2)."""

from __future__ import annotations

import hashlib
from typing import Any

import nats
import orjson

from bus import Agent, Bus, Call, Message, RetryLater, RetryPolicy, Settings
from tests.integration.otlp_receiver import Received
from tests.integration.test_delivery import emptied, settled_dead_letters


async def test_one_workflow_is_one_trace(settings: Settings, received: Received) -> None:
    """Root, send, process, a retry and a dead letter: same trace, each below its cause."""
    planner, writer = Agent("planner"), Agent("writer")

    @planner.on("plan", phase="plan")
    async def plan(payload: Any, message: Message) -> None:
        await message.send("writer", "draft", {}, phase="execute")
        await message.send("writer", "nonsense", {}, phase="execute")

    @writer.on("draft")
    async def draft(payload: Any, message: Message) -> None:
        if message.attempt == 1:
            raise RetryLater(0.0)

    async with Bus.connect("caller", settings=settings) as bus, planner.running(settings), writer.running(settings):
        workflow = bus.workflow("brief")
        await workflow.send("planner", "plan", {})
        await settled_dead_letters(bus, 1)
        await emptied(bus)

    assert {span["trace"] for span in received.spans} == {workflow.trace_id}
    (root,) = received.named("invoke_workflow brief")
    (send_plan,) = received.named("send planner.plan")
    (plan_span,) = received.named("process planner.plan")
    (send_draft,) = received.named("send writer.draft")
    attempts = received.named("process writer.draft")
    (dead,) = received.named("process writer.nonsense")
    assert root["parent"] == ""
    assert send_plan["parent"] == root["id"]
    assert (plan_span["parent"], plan_span["links"]) == (send_plan["id"], [send_plan["id"]])
    assert send_draft["parent"] == plan_span["id"]
    assert [one["parent"] for one in attempts] == [send_draft["id"]] * 2
    assert sorted((one["bus.attempt"], one["bus.settlement"]) for one in attempts) == [(1, "nak"), (2, "ack")]
    assert (dead["error.type"], dead["events"], dead["bus.settlement"]) == (
        "protocol.no_handler",
        ["dead_letter"],
        "dead",
    )
    assert (plan_span["bus.phase"], send_draft["bus.phase"]) == ("plan", "execute")
    assert {span["service"] for span in received.spans} == {"caller", "planner", "writer"}
    assert (send_plan["kind"], plan_span["kind"]) == (4, 5)
    ids = {span["id"] for span in received.spans}
    assert [span["name"] for span in received.spans if span["parent"] and span["parent"] not in ids] == []


async def test_a_task_is_in_the_trace_of_who_submitted_it(settings: Settings, received: Received) -> None:
    """REG-8, OBS-1: from the handler over the submission to each run of the capability; and so in the story."""
    planner, writer = Agent("planner"), Agent("writer", retry=RetryPolicy(base_s=0.01))

    @planner.on("plan", phase="plan")
    async def plan(payload: Any, message: Message) -> None:
        task = await message.submit("report.write", {})
        await task.result(timeout_s=10)

    @writer.capability("report.write", description="Fails once.", long=True)
    async def write(call: Call) -> int:
        if call.attempt == 1:
            raise RetryLater(0.0)
        return 1

    async with Bus.connect("caller", settings=settings) as bus, planner.running(settings), writer.running(settings):
        workflow = bus.workflow("brief")
        await workflow.send("planner", "plan", {})
        await emptied(bus)
        story = await bus.trace(workflow.id)

    assert {span["trace"] for span in received.spans} == {workflow.trace_id}
    (handled,) = received.named("process planner.plan")
    (submit,) = received.named("submit report.write")
    runs = received.named("process writer.tool_call_request")
    calls = received.named("execute_tool report.write")
    assert (submit["parent"], submit["kind"]) == (handled["id"], 4)
    assert [one["parent"] for one in runs] == [submit["id"]] * 2
    assert [one["parent"] for one in calls] == [one["id"] for one in runs]
    assert {one["gen_ai.tool.call.id"] for one in calls} == {submit["bus.call_id"]}
    assert [(step.envelope.type, step.state) for step in story.steps] == [
        ("plan", "handled"),
        ("tool_call_request", "handled"),
    ]


async def test_a_foreign_trace_id_is_mapped(settings: Settings, received: Received) -> None:
    """OBS-2: a message without a traceparent begins its trace under its own, mapped id."""
    agent = Agent("worker")

    @agent.on("note")
    async def note(payload: Any) -> None: ...

    foreign = {
        "version": "1.2",
        "message_id": "m",
        "trace_id": "trace_88f",
        "from": "x",
        "to": "worker",
        "type": "note",
    }
    stranger = await nats.connect(settings.servers)
    async with Bus.connect("caller", settings=settings) as bus, agent.running(settings):
        await stranger.jetstream().publish(f"{settings.namespace}.v1.work.worker.normal.x.note", orjson.dumps(foreign))
        await emptied(bus)
    await stranger.close()
    (span,) = received.named("process worker.note")
    assert span["trace"] == hashlib.sha256(b"trace_88f").digest()[:16].hex()
    assert span["parent"] == ""


async def test_without_an_endpoint_the_context_travels_unchanged(settings: Settings) -> None:
    """OBS-2: unsampled still propagates."""
    worker = Agent("worker")
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"

    @worker.on("job")
    async def job(payload: Any, message: Message) -> None:
        await message.send("sink", "part", {})

    stranger = await nats.connect(settings.servers)
    message = {"version": "1.2", "message_id": "m", "trace_id": "0af7651916cd43dd8448eb211c80319c", "from": "x"}
    async with Bus.connect("caller", settings=settings) as bus, worker.running(settings):
        await stranger.jetstream().publish(
            f"{settings.namespace}.v1.work.worker.normal.x.job",
            orjson.dumps({**message, "to": "worker", "type": "job"}),
            headers={"traceparent": traceparent, "baggage": "k=v"},
        )
        await emptied(bus)
        stored = await stranger.jetstream().get_last_msg(
            f"{settings.namespace.upper()}_WORK", f"{settings.namespace}.v1.work.sink.normal.worker.part"
        )
    await stranger.close()
    assert (stored.headers or {})["traceparent"] == traceparent
    assert (stored.headers or {})["baggage"] == "k=v"
