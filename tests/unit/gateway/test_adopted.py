"""Tools that teams have already become capabilities (TOOL-4, REG-11)."""

from __future__ import annotations

from typing import Any

import pytest

from bus import Agent
from bus.gateway.adopted import adopt_tools
from bus.gateway.openai import openai_tools
from tests.unit.gateway.tools import SUM, card


def add(a: float, b: float) -> float:
    return a + b


def raw(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments


OPENAI = {"type": "function", "function": {"name": "addNumbers", "description": "Adds.", "parameters": SUM}}
RESPONSES = {"type": "function", "name": "add-flat", "description": "Adds.", "parameters": SUM, "strict": True}
ANTHROPIC = {"name": "raw", "description": "Gives back.", "input_schema": {"type": "object"}}


async def test_all_three_shapes_are_adopted() -> None:
    """TOOL-4: both ways."""
    agent = Agent("old-tools")
    names = adopt_tools(
        agent, [OPENAI, RESPONSES, ANTHROPIC], {"addNumbers": add, "add-flat": add, "raw": raw}, idempotent=True
    )
    assert names == {"addNumbers": "old_tools.add_numbers", "add-flat": "add.flat", "raw": "old_tools.raw"}
    capability = agent._capabilities["old_tools.add_numbers"]
    assert (capability.card.input_schema, capability.card.idempotent) == (SUM, True)
    assert await capability.run(capability.admit({"a": 1, "b": 2})[0], None) == 3
    given = agent._capabilities["old_tools.raw"]
    assert await given.run(given.admit({"x": 1})[0], None) == {"x": 1}


async def test_what_we_defined_comes_back_as_what_it_was() -> None:
    """TOOL-4: there and back."""
    agent = Agent("calculator")
    tools = openai_tools([card(), card("math.root")])
    assert adopt_tools(agent, tools, {"calculator-add": add, "math-root": add}) == {
        "calculator-add": "calculator.add",
        "math-root": "math.root",
    }
    assert agent._capabilities["calculator.add"].card.input_schema == card().input_schema


def test_everything_that_is_wrong_is_told_at_once_and_nothing_is_registered() -> None:
    """TOOL-4, REG-1."""
    agent = Agent("old")
    definitions: list[dict[str, Any]] = [
        OPENAI,
        {"type": "web_search_20250305", "name": "web_search"},
        {"name": "silent", "input_schema": {"type": "object"}},
        {"name": "twisted", "description": "x", "input_schema": {"type": "objekt"}},
        {"name": "add_numbers", "description": "x", "input_schema": {"type": "object"}},
    ]
    functions = {"addNumbers": add, "silent": add, "twisted": add, "add_numbers": add, "spare": add}
    with pytest.raises(ValueError, match="not adopted") as refused:
        adopt_tools(agent, definitions, functions)
    for part in (
        "web_search: has no name",
        "silent: registry.invalid_card",
        "twisted: registry.invalid_card",
        "add_numbers: there is already a capability old.add_numbers",
        "spare: there is no definition",
    ):
        assert part in str(refused.value)
    assert agent.capabilities == []
