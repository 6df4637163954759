"""Spans and metrics of calls as an OTLP receiver and a scrape get them (OBS-1, OBS-4)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from bus import Agent, Bus, BusError, Call, CallDraft, Message, Settings
from bus.telemetry.instruments import Distribution
from bus.telemetry.metrics import ServiceMetrics
from bus.testing import settled
from tests.integration.otlp_receiver import Received, plain

CLIENT, SERVER = 3, 2


async def test_a_call_is_a_client_and_a_server_span_below_what_made_it(settings: Settings, received: Received) -> None:
    """Also a call within a call; a failure is an error of both sides, and only the callee's is a tool's."""
    worker, tools = Agent("worker"), Agent("tools")

    @tools.capability("number.read", example={"text": "1"})
    async def read(text: str) -> int:
        """Reads a number."""
        return int(text)

    @tools.capability("number.double", example={"text": "1"})
    async def double(text: str, call: Call) -> int:
        """Reads and doubles one."""
        return 2 * int((await call.call("number.read", {"text": text})).data)

    @worker.on("job", phase="execute")
    async def job(payload: Any, message: Message) -> None:
        assert (await message.call("number.double", {"text": "4"})).data == 8

    async with Bus.connect("caller", settings=settings) as bus, tools.running(settings), worker.running(settings):
        workflow = bus.workflow("counting")
        await workflow.send("worker", "job", {})
        await settled(bus, 20)
        (failed,) = (await bus.call_many([CallDraft("number.read", {"text": "x"}, id="wrong")])).values()
    assert not failed.ok
    (process,) = received.named("process worker.job")
    (outer,) = received.named("call number.double")
    (tool,) = received.named("execute_tool number.double")
    (inner,) = [one for one in received.named("call number.read") if one["service"] == "tools"]
    (read_,) = [one for one in received.named("execute_tool number.read") if one["parent"] == inner["id"]]
    chain = (process, outer, tool, inner, read_)
    assert [one["parent"] for one in chain[1:]] == [one["id"] for one in chain[:-1]]
    assert {one["trace"] for one in chain} == {workflow.trace_id}
    assert [(one["service"], one["kind"]) for one in chain[1:]] == [
        ("worker", CLIENT),
        ("tools", SERVER),
        ("tools", CLIENT),
        ("tools", SERVER),
    ]
    assert {one["rpc.method"] for one in (outer, tool)} == {"number.double"}
    assert tool["bus.workflow_id"] == workflow.id
    assert (tool["bus.caller"], tool["bus.callee"]) == ("worker", "tools")
    # Jaeger takes a span with any such attribute for the work of a model or a tool.
    assert [any(name.startswith("gen_ai.") for name in one) for one in chain] == [False, False, True, False, True]
    assert (tool["gen_ai.operation.name"], tool["gen_ai.tool.name"]) == ("execute_tool", "number.double")
    (asked,) = [one for one in received.named("call number.read") if one["service"] == "caller"]
    (answered,) = [one for one in received.named("execute_tool number.read") if one["parent"] == asked["id"]]
    assert (asked["error.type"], answered["error.type"]) == ("tool.execution_failed", "tool.execution_failed")
    assert asked["bus.call_id"] == answered["bus.call_id"] == "wrong"


async def test_a_streamed_call_is_a_span_as_long_as_its_stream(settings: Settings, received: Received) -> None:
    """How it ended is on both sides, in spans and in metrics: done, failed after some chunks, left by its reader."""
    tools = Agent("tools")

    @tools.capability("number.count", example={"to": 3}, timeout_s=10)
    async def count(to: int) -> AsyncIterator[int]:
        """Counts, and fails at three."""
        for number in range(to):
            if number == 3:
                raise ValueError("three")
            yield number
            await asyncio.sleep(0.02)

    async with Bus.connect("caller", settings=settings) as bus, tools.running(settings):
        workflow = bus.workflow("counting")
        assert [one async for one in bus.stream("number.count", {"to": 3}, workflow_id=workflow.id)] == [0, 1, 2]
        with contextlib.suppress(BusError):
            async for _ in bus.stream("number.count", {"to": 9}):
                pass
        async with bus.stream("number.count", {"to": 3}) as left:
            async for _ in left:
                break
        bus.stream("number.count", {"to": 3})  # Never read, never asked.
    codes = ["", "tool.execution_failed", "tool.cancelled"]
    (told,) = [one for one in received.metrics if one["service"] == "caller"]
    points = told["rpc.client.call.duration"]["histogram"]["dataPoints"]
    assert sorted(plain(one["attributes"]).get("error.type", "") for one in points) == sorted(codes)
    assert [int(one["count"]) for one in points] == [1, 1, 1]
    asked = sorted(received.named("call number.count"), key=lambda one: one["start"])
    assert [one.get("error.type", "") for one in asked] == codes
    assert asked[0]["bus.workflow_id"] == workflow.id
    for one in asked[:2]:
        (tool,) = [run for run in received.named("execute_tool number.count") if run["parent"] == one["id"]]
        assert one["start"] <= tool["start"] <= tool["end"] <= one["end"]


async def test_calls_are_counted_by_capability_and_error_on_both_sides(settings: Settings) -> None:
    """What a caller makes up is one series, and a cancelled call is counted too."""
    tools, began, release = Agent("tools", call_concurrency=1), asyncio.Event(), asyncio.Event()

    @tools.capability("gate.pass", example={"wait": False})
    async def gate(wait: bool) -> str:
        """Waits at the gate."""
        if wait:
            began.set()
            await release.wait()
        return "through"

    @tools.capability("number.read", example={"text": "1"})
    async def read(text: str) -> int:
        """Reads a number."""
        return int(text)

    tight = settings.model_copy(update={"max_call_queue": 1})
    caller = Agent("caller")

    @caller.on("ask")
    async def ask(payload: Any, message: Message) -> None:
        for name, text in (("read", "1"), ("read", "2"), ("read", "x"), ("read", 1), ("raed", "1")):
            with contextlib.suppress(BusError):
                await message.call(f"number.{name}", {"text": text})

    async with (
        Bus.connect("client", settings=settings) as bus,
        tools.running(tight) as callee,
        caller.running(settings) as asking,
    ):
        before = values(callee.metrics, "rpc.server.call.duration")
        assert before == {("gate.pass", ""): 0, ("number.read", ""): 0}
        await bus.send("caller", "ask", {})
        await settled(bus, 20)
        held = [asyncio.create_task(bus.call("gate.pass", {"wait": True}))]
        await asyncio.wait_for(began.wait(), 10)
        held.append(asyncio.create_task(bus.call("gate.pass", {"wait": False})))
        await until(lambda: gauge(callee.metrics, "bus.calls.waiting") == 1)
        (refused,) = (await bus.call_many([CallDraft("gate.pass", {"wait": False})])).values()
        assert refused.error is not None
        assert refused.error.code == "agent.busy"
        names = ("bus.calls.in_flight", "bus.calls.in_flight.limit", "bus.calls.waiting", "bus.calls.busy")
        assert [gauge(callee.metrics, name) for name in names] == [1, 1, 1, 1]
        held[0].cancel()
        await asyncio.wait(held[:1])
        assert (await asyncio.wait_for(held[1], 10)).data == "through"
        await until(lambda: gauge(callee.metrics, "bus.calls.in_flight") == 0)
        assert values(callee.metrics, "rpc.server.call.duration") == {
            ("gate.pass", ""): 1,
            ("gate.pass", "tool.cancelled"): 1,
            ("number.read", ""): 2,
            ("number.read", "tool.execution_failed"): 1,
            ("number.read", "tool.validation_failed"): 1,
        }
        assert values(asking.metrics, "rpc.client.call.duration") == {
            ("number.raed", "registry.capability_not_found"): 1,
            ("number.read", ""): 2,
            ("number.read", "tool.execution_failed"): 1,
            ("number.read", "tool.validation_failed"): 1,
        }


async def test_a_result_that_cannot_be_sent_is_counted_as_a_failure(settings: Settings) -> None:
    """OBS-4: both sides count the same."""
    tools, caller = Agent("tools"), Agent("caller")

    @tools.capability("number.odd", example={})
    async def odd() -> Any:
        """Gives what JSON has no word for."""
        return float("nan")

    @caller.on("ask")
    async def ask(payload: Any, message: Message) -> None:
        with contextlib.suppress(BusError):
            await message.call("number.odd", {})

    async with (
        Bus.connect("client", settings=settings) as bus,
        tools.running(settings) as callee,
        caller.running(settings) as asking,
    ):
        await bus.send("caller", "ask", {})
        await settled(bus, 20)
        failed = ("number.odd", "tool.invalid_result")
        assert values(asking.metrics, "rpc.client.call.duration") == {failed: 1}
        assert values(callee.metrics, "rpc.server.call.duration") == {("number.odd", ""): 0, failed: 1}


def test_hostile_names_make_no_series() -> None:
    count = 600
    metrics = ServiceMetrics("tools")
    for number in range(count):
        metrics.calls.answered(f"made.up{number}", "tool.unknown_capability", 0.0)
        metrics.calls.asked(f"made.up{number}", "", 0.0)
    assert values(metrics, "rpc.server.call.duration") == {("_other", "tool.unknown_capability"): count}
    asked = values(metrics, "rpc.client.call.duration")
    assert (len(asked), asked["_other", ""]) == (513, count - 512)


def values(metrics: ServiceMetrics, name: str) -> dict[tuple[str, str], int]:
    """How many calls a histogram has, by capability and error code."""
    (found,) = [metric for metric in metrics.read() if metric.name == name]
    counts = {}
    for labels, value in found.values.items():
        assert isinstance(value, Distribution)
        counts[dict(labels)["rpc.method"], dict(labels)["error.type"]] = value.count
    return counts


def gauge(metrics: ServiceMetrics, name: str) -> Any:
    """The value of a metric that has one series."""
    (found,) = [metric for metric in metrics.read() if metric.name == name]
    (value,) = found.values.values()
    return value


async def until(condition: Any) -> None:
    """Waits for a condition, at most 10 s."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)
