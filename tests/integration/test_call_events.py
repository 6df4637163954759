"""What is told about a call on the way: its events, and its progress (REG-7, EDGE-2)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from bus import Agent, Bus, Call, Settings, ToolError
from bus.calls.records import Told

BEGINNING = datetime.fromtimestamp(0, UTC)


async def test_events_are_numbered_and_carry_the_ids_of_the_call(bus: Bus, settings: Settings) -> None:
    """EDGE-2: agent_start, tool_call_started, tool_call_result, status_update, agent_end; and `bus tail` sees them."""
    agent = Agent("writer")

    @agent.capability("inner.fail", description="Fails.")
    async def inner(much: bool) -> int:
        if much:
            raise RuntimeError("no")
        return 1

    @agent.capability("outer.work", description="Works.")
    async def outer(call: Call) -> AsyncIterator[int]:
        await call.progress(0.5, "halfway")
        await call.call("inner.fail", {"much": False})
        yield 1
        with contextlib.suppress(ToolError):
            await call.call("inner.fail", {"much": True})
        with pytest.raises(ValueError, match="above the one before"):
            await call.progress(0.4)
        await call.progress(1)

    async with agent.running(settings):
        heard: list[tuple[float, str]] = []
        stream = bus.stream(
            "outer.work", workflow_id="w1", on_progress=lambda fraction, message: heard.append((fraction, message))
        )
        records = [record async for record in stream.records()]
    assert [record.number for record in records] == list(range(1, len(records) + 1))
    assert [record.told for record in records] == [
        Told.START, Told.STATUS, Told.TOOL_STARTED, Told.TOOL_RESULT, Told.CHUNK, Told.TOOL_STARTED, Told.TOOL_RESULT,
        Told.STATUS, Told.END,
    ]  # fmt: skip
    assert heard == [(0.5, "halfway"), (1, "")]
    inner_calls = [record.payload["call"] for record in records if record.told is Told.TOOL_RESULT]
    assert [(one["tool_name"], one["ok"]) for one in inner_calls] == [("inner.fail", True), ("inner.fail", False)]
    assert inner_calls[1]["error_code"] == "tool.execution_failed"
    seen = [one async for one in bus.watch(workflow_id="w1", since=BEGINNING, follow=False)]
    assert [one.envelope.payload["number"] for one in seen if one.envelope] == [record.number for record in records]
    assert {one.kind for one in seen} == {"stream"}
    assert {one.published_as for one in seen} == {None}


async def test_progress_of_an_ordinary_call_reaches_who_asked_and_never_extends_the_deadline(
    bus: Bus, settings: Settings
) -> None:
    agent = Agent("writer")

    @agent.capability("work.slowly", description="Works.", timeout_s=0.3)
    async def slowly(call: Call, pause_s: float) -> str:
        for tenth in range(1, 11):
            await call.progress(tenth / 10, f"{tenth}0 %")
            await asyncio.sleep(pause_s)
        return "done"

    heard: list[float] = []

    async def hear(fraction: float, message: str) -> None:
        heard.append(fraction)

    def refuse(fraction: float, message: str) -> None:
        raise KeyError(message)

    async with agent.running(settings):
        done = await bus.call("work.slowly", {"pause_s": 0.001}, on_progress=hear)
        assert (done.data, heard) == ("done", [tenth / 10 for tenth in range(1, 11)])
        assert (await bus.call("work.slowly", {"pause_s": 0.001})).data == "done"
        heard.clear()
        with pytest.raises(ToolError) as late:
            await bus.call("work.slowly", {"pause_s": 0.1}, on_progress=hear)
        assert late.value.info.code == "tool.timeout"
        assert 1 <= len(heard) <= 5
        with pytest.raises(KeyError, match="10 %"):
            await bus.call("work.slowly", {"pause_s": 0.1}, on_progress=refuse)
        # A plain capability streams as one chunk.
        assert [chunk async for chunk in bus.stream("work.slowly", {"pause_s": 0.001})] == ["done"]


async def test_streams_that_a_capability_reads_are_told_too(bus: Bus, settings: Settings) -> None:
    """EDGE-2."""
    agent = Agent("writer")

    @agent.capability("inner.count", description="Counts, and fails.")
    async def inner() -> AsyncIterator[int]:
        yield 1
        raise RuntimeError("no")

    @agent.capability("outer.count", description="Counts.")
    async def outer(call: Call) -> AsyncIterator[int]:
        with contextlib.suppress(ToolError):
            async for number in call.stream("inner.count", {}):
                yield number

    async with agent.running(settings):
        records = [record async for record in bus.stream("outer.count").records()]
    assert [record.told for record in records] == [
        Told.START, Told.TOOL_STARTED, Told.CHUNK, Told.TOOL_RESULT, Told.END
    ]  # fmt: skip
    call = records[3].payload["call"]
    assert (call["tool_name"], call["ok"], call["error_code"]) == ("inner.count", False, "tool.execution_failed")
