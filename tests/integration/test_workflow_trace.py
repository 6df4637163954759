"""The story of a whole workflow: its end, its fan-in, its wait for a person, its length (OBS-1)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bus import Agent, Bus, Message, PermanentFailure, Settings
from bus.telemetry import length
from tests.integration.otlp_receiver import Received
from tests.integration.test_delivery import emptied


@pytest.mark.parametrize(
    ("problem", "status", "code"),
    [
        (None, "success", None),
        (PermanentFailure("no"), "error", "tool.execution_failed"),
        (KeyError("x"), "error", "KeyError"),
        (asyncio.CancelledError(), "cancelled", None),
    ],
)
async def test_a_summary_closes_it_with_its_status(
    settings: Settings, received: Received, problem: BaseException | None, status: str, code: str | None
) -> None:
    async with Bus.connect("caller", settings=settings) as bus:
        workflow = bus.workflow("brief")
        try:
            async with workflow:
                await workflow.send("sink", "note", {})
                if problem is not None:
                    raise problem
        except BaseException as raised:
            if raised is not problem:
                raise
        workflow.finish("success")
    (root,) = received.named("invoke_workflow brief")
    (summary,) = received.named("workflow brief")
    assert (summary["parent"], summary["bus.workflow.status"]) == (root["id"], status)
    assert (summary["error"], summary.get("error.type")) == (code is not None, code)
    assert summary["bus.workflow_id"] == workflow.id


async def test_a_status_that_is_none_is_refused(settings: Settings) -> None:
    async with Bus.connect("caller", settings=settings) as bus:
        with pytest.raises(ValueError, match="success, error, cancelled"):
            bus.workflow("brief").finish("done")


async def test_fan_in_is_linked_to_every_cause(settings: Settings, received: Received) -> None:
    reviewer = Agent("reviewer", concurrency=1)

    @reviewer.on("draft")
    async def draft(payload: Any, message: Message) -> None:
        def add(document: dict[str, Any] | None) -> dict[str, Any]:
            return {"seen": [*(document or {"seen": []})["seen"], message.traceparent]}

        seen = (await message.state.update("drafts", add))["seen"]
        if len(seen) == 3:
            message.link([*seen, None, "damaged"])

    async with Bus.connect("caller", settings=settings) as bus, reviewer.running(settings):
        workflow = bus.workflow("brief")
        for _ in range(3):
            await workflow.send("reviewer", "draft", {})
        await emptied(bus)
    spans = received.named("process reviewer.draft")
    (joined,) = [one for one in spans if len(one["links"]) > 1]
    assert set(joined["links"]) == {joined["parent"]} | {one["id"] for one in spans if one is not joined}


async def test_after_a_person_it_goes_on_in_a_new_trace_linked_both_ways(
    settings: Settings, received: Received
) -> None:
    desk, asked = Agent("desk"), asyncio.Queue[tuple[str, str]]()

    @desk.on("question")
    async def question(payload: Any, message: Message) -> None:
        assert message.workflow_id is not None
        assert message.traceparent is not None
        await asked.put((message.workflow_id, message.traceparent))

    async with Bus.connect("caller", settings=settings) as bus, desk.running(settings):
        first = bus.workflow("brief")
        await first.send("desk", "question", {})
        workflow_id, traceparent = await asked.get()
        second = bus.workflow("brief", workflow_id=workflow_id, after=traceparent)
        answer = await second.send("sink", "answer", {})
        second.finish()
        await emptied(bus)
    assert (second.id, answer.workflow_id) == (first.id, first.id)
    assert answer.trace_id == second.trace_id != first.trace_id
    (process,) = received.named("process desk.question")
    (begun,) = received.named("continue_workflow brief")
    (forward,) = received.named("workflow_continues")
    (send,) = received.named("send sink.answer")
    assert (begun["trace"], begun["parent"], begun["links"]) == (second.trace_id, "", [process["id"]])
    assert (forward["trace"], forward["parent"], forward["links"]) == (first.trace_id, process["id"], [begun["id"]])
    assert (send["trace"], send["parent"]) == (second.trace_id, begun["id"])
    assert begun["bus.workflow_id"] == forward["bus.workflow_id"] == first.id


async def test_a_long_workflow_is_several_traces_and_no_span_is_an_orphan(
    settings: Settings, received: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain and a fan-out over two services: the traces stay near the limit, header and envelope agree."""
    monkeypatch.setattr(length, "MAX_SPANS", 30)
    ping, pong = Agent("ping"), Agent("pong")

    async def onward(payload: Any, message: Message) -> None:
        await message.send("sink", "note", {})
        if payload["left"]:
            await message.send(payload["next"], "ball", {"left": payload["left"] - 1, "next": message.envelope.to})

    ping.on("ball")(onward)
    pong.on("ball")(onward)
    async with Bus.connect("caller", settings=settings) as bus, ping.running(settings), pong.running(settings):
        workflow = bus.workflow("rally")
        await workflow.send("ping", "ball", {"left": 40, "next": "pong"})
        await emptied(bus)
    traces = {one["trace"] for one in received.spans}
    sizes = sorted(sum(one["trace"] == trace for one in received.spans) for trace in traces)
    assert len(traces) >= 3
    assert sizes[-1] <= 2 * 30 + 10
    ids = {(one["trace"], one["id"]) for one in received.spans}
    assert [one["name"] for one in received.spans if one["parent"] and (one["trace"], one["parent"]) not in ids] == []
    assert len(received.named("process ping.ball")) + len(received.named("process pong.ball")) == 41
    assert {one["bus.workflow_id"] for one in received.spans} == {workflow.id}
