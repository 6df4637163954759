"""Tool definitions as OpenAI and Anthropic take them, held against the types of their own SDKs (TOOL-4)."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import ToolParam
from openai.types.chat import ChatCompletionFunctionToolParam
from openai.types.responses import FunctionToolParam
from pydantic import BaseModel, Field, TypeAdapter

from bus import Agent
from bus.calls.index import Offer
from bus.gateway.anthropic import anthropic_tools
from bus.gateway.openai import openai_tools
from bus.gateway.toolbox import Toolbox
from tests.unit.gateway.tools import SUM, card


class Place(BaseModel):
    city: str = Field(description="Where.")


OPTIONAL = {"type": "object", "properties": {"a": {"type": "number", "minimum": 1}}, "additionalProperties": False}


def test_openai_chat() -> None:
    """TOOL-4."""
    tools = openai_tools([card(example={"a": 1, "b": 2})])
    assert tools == [
        {
            "type": "function",
            "function": {
                "name": "calculator-add",
                "description": 'Adds two numbers.\n\nExample arguments: {"a":1,"b":2}',
                "parameters": SUM,
            },
        }
    ]
    TypeAdapter(list[ChatCompletionFunctionToolParam]).validate_python(tools)


def test_openai_responses_are_flat_and_say_that_they_are_not_strict() -> None:
    """TOOL-4: that API is strict unless it is told otherwise."""
    tools = openai_tools([card()], api="responses")
    assert tools == [
        {
            "type": "function",
            "name": "calculator-add",
            "description": "Adds two numbers.",
            "parameters": SUM,
            "strict": False,
        }
    ]
    TypeAdapter(list[FunctionToolParam]).validate_python(tools)


def test_anthropic() -> None:
    """TOOL-4."""
    tools = anthropic_tools([card()])
    assert tools == [{"name": "calculator-add", "description": "Adds two numbers.", "input_schema": SUM}]
    TypeAdapter(list[ToolParam]).validate_python(tools)


def test_strict_only_where_the_schema_qualifies() -> None:
    """TOOL-4: the others stay, and the notes say why."""
    cards = [card(), card("calculator.root", input_schema=OPTIONAL)]
    chat = openai_tools(cards, strict=True)
    assert [tool["function"].get("strict") for tool in chat] == [True, None]
    assert chat.notes == ("calculator.root: not strict: arguments: a must be required",)
    responses = openai_tools(cards, api="responses", strict=True)
    assert [tool["strict"] for tool in responses] == [True, False]
    messages = anthropic_tools(cards, strict=True)
    assert [tool.get("strict") for tool in messages] == [True, None]
    assert messages.notes == ("calculator.root: not strict: arguments.a: minimum is not taken",)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "object"}, "additionalProperties must be false"),
        ({**SUM, "properties": {"a": {}, "b": {"type": "number"}}}, "anything is allowed"),
        ({**SUM, "properties": {"a": {"type": "string", "minLength": 1}, "b": {"type": "number"}}}, "minLength"),
        ({**SUM, "properties": {"a": {"type": "string", "format": "iban"}, "b": {"type": "number"}}}, "iban"),
        ({**SUM, "not": {"required": ["c"]}}, "a rule in the description"),
    ],
)
def test_what_strict_mode_does_not_take(schema: dict[str, Any], why: str) -> None:
    """TOOL-4."""
    for tools in (openai_tools([card(input_schema=schema)], strict=True),
                  anthropic_tools([card(input_schema=schema)], strict=True)):  # fmt: skip
        assert any(why in note for note in tools.notes), tools.notes
        assert "strict" not in tools[0]


def test_recursion_is_strict_with_openai_alone() -> None:
    """TOOL-4."""
    node = {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
        "required": ["next"],
        "additionalProperties": False,
    }
    tree = card(input_schema={**node, "$defs": {"node": node}})
    assert openai_tools([tree], strict=True)[0]["function"]["strict"] is True
    assert anthropic_tools([tree], strict=True).notes == (
        "calculator.add: not strict: arguments: a schema that contains itself",
    )


def test_a_pydantic_model_with_defaults_goes_through() -> None:
    """TOOL-4: what our own agents register."""

    agent = Agent("weather")

    @agent.capability("weather.now")
    async def now(place: Place, unit: str = "c", days: list[int] | None = None) -> str:
        """What the weather is."""
        raise NotImplementedError

    (tool,) = anthropic_tools([agent._capabilities["weather.now"].card])
    assert tool["input_schema"]["$defs"]["Place"]["properties"]["city"]["description"] == "Where."
    (function,) = openai_tools([agent._capabilities["weather.now"].card])
    assert function["function"]["parameters"]["properties"]["unit"]["default"] == "c"


def test_openai_descriptions_have_a_limit() -> None:
    """TOOL-4: the example goes first, then the end of the text; both are told."""
    tools = openai_tools([card(description="word " * 400, example={"a": 1, "b": 2})])
    assert len(tools[0]["function"]["description"]) == 1024
    assert [note.partition(": ")[2] for note in tools.notes] == [
        "the example does not fit into the description",
        "the description is cut to 1024 characters",
    ]


def test_one_bad_tool_does_not_take_the_others_along() -> None:
    """TOOL-4."""
    bad = {"type": "object", "properties": {"größe": {"type": "number"}}, "required": ["größe"]}
    tools = anthropic_tools([card(), card("shoes.fit", input_schema=bad)])
    assert [tool["name"] for tool in tools] == ["calculator-add"]
    assert tools.notes[0].startswith("shoes.fit: left out")


def test_of_several_versions_the_newest_is_the_tool() -> None:
    """TOOL-4, REG-9: whatever the order in which they are found."""
    cards = [card(version=version) for version in ("1.9.0", "2.0.0-rc1", "1.10.0", "2.0.0")]
    offers = [Offer("alice", one, ("i",), ("1.2",)) for one in cards]
    assert Toolbox.of(offers) == Toolbox.of(reversed(offers)) == Toolbox.of(cards)
    assert Toolbox.of(offers).cards["calculator-add"].version == "2.0.0"
