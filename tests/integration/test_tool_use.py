"""A model's tool calls on a real broker (TOOL-3, TOOL-4, TOOL-6)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from anthropic.types import Message as AnthropicMessage
from openai.types.chat import ChatCompletion

from bus import Agent, Bus, Call, Message, Settings
from bus.gateway.adopted import adopt_tools
from bus.gateway.openai import openai_tools
from bus.gateway.tool_use import ToolUse, run_tool_calls
from tests.unit.gateway.test_tool_calls import chat, messages


def tools_agent(seen: list[Any] | None = None) -> Agent:
    agent = Agent("tools")
    runs = [] if seen is None else seen

    @agent.capability("calculator.add", example={"a": 1, "b": 2})
    async def add(a: float, b: float) -> dict[str, float]:
        """Adds two numbers."""
        runs.append((a, b))
        return {"sum": a + b}

    @agent.capability("text.long")
    async def long(lines: int) -> list[str]:
        """Gives many lines."""
        return [f"line {n} " + "x" * 100 for n in range(lines)]

    @agent.capability("clock.wait")
    async def wait(seconds: float) -> str:
        """Waits."""
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            runs.append("cancelled")
            raise
        return "waited"

    return agent


async def test_calls_of_a_response_run_at_once_and_each_is_answered(bus: Bus, settings: Settings) -> None:
    """TOOL-3, TOOL-4: parallel calls; good, refused, unknown and malformed ones."""
    async with tools_agent().running(settings):
        tools = await bus.capabilities.find()
        response = ChatCompletion.model_validate(
            chat(
                ("call_1", "calculator-add", '{"a": 1, "b": 2}'),
                ("call_2", "calculator-add", '{"a": "one", "b": 2}'),
                ("call_3", "calculator-sub", "{}"),
                ("call_4", "calculator-add", '{"a": 1'),
                ("call_5", "calculator-add", '{"a": 5, "b": 5}'),
            )
        )
        answers = await run_tool_calls(bus, response, tools)
    assert [one["tool_call_id"] for one in answers] == [f"call_{n}" for n in range(1, 6)]
    contents = [json.loads(one["content"]) for one in answers]
    assert (contents[0], contents[4]) == ({"sum": 3.0}, {"sum": 10.0})
    refused = contents[1]["error"]
    assert refused["code"] == "tool.validation_failed"
    assert refused["errors"][0]["path"] == "arguments.a"
    assert refused["schema"]["required"] == ["a", "b"]
    assert "Correct exactly these" in refused["instruction"]
    assert refused["repairs_left"] == 2
    assert [one["error"]["code"] for one in contents[2:4]] == ["tool.unknown_capability", "tool.validation_failed"]


async def test_the_same_for_anthropic(bus: Bus, settings: Settings) -> None:
    """TOOL-4: all results in one message of the user."""
    async with tools_agent().running(settings):
        response = AnthropicMessage.model_validate(
            messages(("toolu_1", "calculator-add", {"a": 1, "b": 2}), ("toolu_2", "calculator-add", {"a": 1}))
        )
        (message,) = await run_tool_calls(bus, response, await bus.capabilities.find())
    good, bad = message["content"]
    assert (message["role"], good["content"], "is_error" in good) == ("user", '{"sum":3.0}', False)
    assert (bad["tool_use_id"], bad["is_error"]) == ("toolu_2", True)


async def test_a_model_never_gets_a_megabyte(bus: Bus, settings: Settings) -> None:
    """TOOL-6: cut, and the reference leads to the whole."""
    async with tools_agent().running(settings):
        response = chat(("call_1", "text-long", '{"lines": 10000}'))
        (answer,) = await run_tool_calls(bus, response, await bus.capabilities.find(), max_result_bytes=2000)
        told = json.loads(answer["content"])
        assert len(answer["content"]) <= 2000
        whole = json.loads(await bus.artifacts.get(told["whole"]["sha256"]))
    assert told["cut"] is True
    assert told["data"][0].startswith("line 0")
    assert len(whole) == 10_000


async def test_a_loop_of_refusals_ends(bus: Bus, settings: Settings) -> None:
    """TOOL-3: a bounded number of repairs."""
    seen: list[Any] = []
    async with tools_agent(seen).running(settings):
        tools, use, told = await bus.capabilities.find(), ToolUse(), list[dict[str, Any]]()
        for turn in range(5):
            response = chat((f"call_{turn}", "calculator-add", '{"a": "one"}'))
            (answer,) = await run_tool_calls(bus, response, tools, use=use)
            told.append(json.loads(answer["content"])["error"])
    assert [one["repairs_left"] for one in told] == [2, 1, 0, 0, 0]
    assert "Do not call it again" in told[2]["instruction"] or "not called" in told[3]["message"]
    assert "not called" in told[4]["message"]
    assert use.exhausted == ["calculator-add"]
    assert seen == []


async def test_cancelling_the_run_cancels_the_calls(bus: Bus, settings: Settings) -> None:
    """TOOL-4: and the calls are then answered as cancelled."""
    seen: list[Any] = []
    async with tools_agent(seen).running(settings) as replica:
        tools = await bus.capabilities.find()
        response = chat(("call_1", "clock-wait", '{"seconds": 25}'))
        run = asyncio.create_task(run_tool_calls(bus, response, tools))
        while not replica.in_flight:
            await asyncio.sleep(0.01)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        while replica.in_flight:
            await asyncio.sleep(0.01)
    assert seen == ["cancelled"]


async def test_nobody_offers_the_tool_any_more(bus: Bus, settings: Settings) -> None:
    """TOOL-4: a tool that has gone since the definitions were made is an answer, not an exception."""
    async with tools_agent().running(settings):
        tools = await bus.capabilities.find()
    (answer,) = await run_tool_calls(bus, chat(("call_1", "calculator-add", "{}")), tools, timeout_s=5)
    assert json.loads(answer["content"])["error"]["code"] == "registry.capability_not_found"


async def test_inside_handlers_equal_calls_are_not_made_again(bus: Bus, settings: Settings) -> None:
    """TOOL-5: a handler that runs again after a failure gets what its tools have said before."""
    seen: list[Any] = []
    thinker = Agent("thinker")
    attempts: list[int] = []

    @thinker.on("think")
    async def think(payload: dict[str, Any], message: Message) -> None:
        attempts.append(1)
        use = ToolUse()
        tools = await bus.capabilities.find()
        response = chat(("call_1", "calculator-add", '{"a": 1, "b": 2}'))
        first = await run_tool_calls(message, response, tools, use=use)
        second = await run_tool_calls(message, response, tools, use=use)
        if len(attempts) == 1:
            raise TimeoutError("once more")
        await message.reply("thought", {"answers": [*first, *second]})

    async with tools_agent(seen).running(settings), thinker.running(settings):
        outcome = await bus.outcome(await bus.send("thinker", "think", {}), timeout_s=20)
    assert outcome.reply is not None
    assert [one["content"] for one in outcome.reply.payload["answers"]] == ['{"sum":3.0}'] * 2
    assert (len(attempts), seen) == (2, [(1.0, 2.0)] * 2)


async def test_inside_capabilities(bus: Bus, settings: Settings) -> None:
    """TOOL-4: the calls share the deadline."""
    asker = Agent("asker")

    @asker.capability("question.ask")
    async def ask(call: Call) -> list[dict[str, Any]]:
        """Asks."""
        response = chat(("call_1", "calculator-add", '{"a": 1, "b": 2}'))
        return await run_tool_calls(call, response, await bus.capabilities.find())

    async with tools_agent().running(settings), asker.running(settings):
        assert (await bus.call("question.ask", {})).data[0]["content"] == '{"sum":3.0}'


async def test_a_teams_own_tools_go_round(bus: Bus, settings: Settings) -> None:
    """TOOL-4: definitions with a function become capabilities, which become definitions again."""
    old = Agent("old")

    def get_weather(city: str, unit: str = "c") -> str:
        return f"{city}: 21 {unit}"

    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    definition = {"name": "get_weather", "description": "The weather.", "input_schema": schema}
    adopt_tools(old, [definition], {"get_weather": get_weather}, prefix="weather")
    async with old.running(settings):
        tools = await bus.capabilities.find()
        (tool,) = openai_tools(tools)
        assert tool["function"]["name"] == "weather-get_weather"
        (answer,) = await run_tool_calls(bus, chat(("c", "weather-get_weather", '{"city": "Bonn"}')), tools)
    assert answer["content"] == "Bonn: 21 c"
