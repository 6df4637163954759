"""Tools and tool calls as OpenAI writes them, in chat completions and in the Responses API (TOOL-4).

Plain dicts on both sides; objects of the official SDK are read too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from bus.calls.card import Card
from bus.calls.index import Offer
from bus.gateway.strict_tools import StrictRules, strict_problems
from bus.gateway.tool_call import ToolAnswer, ToolCall, as_object, as_objects
from bus.gateway.tool_schema import fitted
from bus.gateway.toolbox import Toolbox, ToolDefinitions, described

MAX_DESCRIPTION_CHARS = 1024
CUT_OFF = "; the response ended at its token limit, so write less in one call"

_STRICT = StrictRules(
    keywords=frozenset({"format", "pattern", "multipleOf", "minimum", "maximum", "exclusiveMinimum",
                        "exclusiveMaximum", "minItems", "maxItems"}),
    formats=frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}),
    is_everything_required=True,
)  # fmt: skip


def openai_tools(
    tools: Toolbox | Iterable[Card | Offer], *, api: Literal["chat", "responses"] = "chat", strict: bool = False
) -> ToolDefinitions:
    """Tool definitions for `client.chat.completions.create(tools=...)`, or for `client.responses.create(tools=...)`.

    `strict` asks for strict mode wherever a schema qualifies; the others stay as they are. The `notes` of the list say
    what could not be kept, and which schemas do not qualify. Raises ValueError for two capabilities with one tool name.
    """
    provider: Chat | Responses = Chat() if api == "chat" else Responses()
    return provider.definitions(Toolbox.of(tools), strict=strict)


class Chat:
    """Chat completions, also of the many other providers that speak them."""

    def definitions(self, tools: Toolbox, *, strict: bool) -> ToolDefinitions:
        """`{"type": "function", "function": {...}}` for each."""
        functions, notes = _functions(tools, strict)
        for function in functions:
            if not function["strict"]:
                del function["strict"]  # other providers do not know it
        return ToolDefinitions([{"type": "function", "function": one} for one in functions], notes)

    def reads(self, response: Mapping[str, Any]) -> bool:
        """A completion, or its message alone."""
        is_message = response.get("role") == "assistant" and not isinstance(response.get("content"), list)
        return "choices" in response or "tool_calls" in response or is_message

    def calls(self, response: Mapping[str, Any]) -> list[ToolCall]:
        """Those of the first choice."""
        message: Mapping[str, Any] = response
        hint = ""
        if "choices" in response:
            choice = next(iter(as_objects(response["choices"])), {})
            message = as_object(choice.get("message"))
            hint = CUT_OFF if choice.get("finish_reason") == "length" else ""
        found = []
        for call in as_objects(message.get("tool_calls")):
            function, custom = as_object(call.get("function")), as_object(call.get("custom"))
            if call.get("type") == "custom":
                found.append(ToolCall.read(call.get("id"), custom.get("name"), None, is_custom=True))
            else:
                arguments = function.get("arguments")
                found.append(ToolCall.read(call.get("id"), function.get("name"), arguments, hint=hint))
        return found

    def messages(self, answers: list[ToolAnswer]) -> list[dict[str, Any]]:
        """One message of the role `tool` for each call."""
        return [{"role": "tool", "tool_call_id": one.call.id, "content": one.text} for one in answers]


class Responses:
    """The Responses API, whose calls and answers are items of its input and output."""

    def definitions(self, tools: Toolbox, *, strict: bool) -> ToolDefinitions:
        """`{"type": "function", "name": ...}` for each; this API is strict unless it is told otherwise."""
        functions, notes = _functions(tools, strict)
        return ToolDefinitions([{"type": "function", **one} for one in functions], notes)

    def reads(self, response: Mapping[str, Any]) -> bool:
        """A response with its items."""
        return isinstance(response.get("output"), list)

    def calls(self, response: Mapping[str, Any]) -> list[ToolCall]:
        """Items of the type `function_call` and `custom_tool_call`."""
        hint = CUT_OFF if response.get("status") == "incomplete" else ""
        found = []
        for item in as_objects(response["output"]):
            call_id = item.get("call_id") or item.get("id")
            if item.get("type") == "function_call":
                found.append(ToolCall.read(call_id, item.get("name"), item.get("arguments"), hint=hint))
            elif item.get("type") == "custom_tool_call":
                found.append(ToolCall.read(call_id, item.get("name"), None, is_custom=True))
        return found

    def messages(self, answers: list[ToolAnswer]) -> list[dict[str, Any]]:
        """One item of the type `function_call_output` for each call."""
        return [
            {
                "type": "custom_tool_call_output" if one.call.is_custom else "function_call_output",
                "call_id": one.call.id,
                "output": one.text,
            }
            for one in answers
        ]


def _functions(tools: Toolbox, strict: bool) -> tuple[list[dict[str, Any]], list[str]]:
    found, notes = [], []
    for name, card in tools.cards.items():
        schema = fitted(card.input_schema)
        said = [*schema.notes]
        description, left_out = described(card, schema.told, MAX_DESCRIPTION_CHARS)
        parameters, is_strict = schema.schema, False
        if strict:
            plain = _without_annotations(schema.schema)
            problems = strict_problems(plain, _STRICT) if not schema.told else ["arguments: a rule in the description"]
            is_strict = not problems
            parameters = plain if is_strict else parameters
            said += [f"not strict: {problem}" for problem in problems]
        notes += [f"{card.name}: {note}" for note in [*said, *left_out]]
        found.append({"name": name, "description": description, "parameters": parameters, "strict": is_strict})
    return found, notes


def _without_annotations(schema: Any) -> Any:
    """Without `default` and `examples`, which strict mode refuses; where everything is required they say nothing."""
    if isinstance(schema, list):
        return [_without_annotations(below) for below in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for name, below in schema.items():
        if name in ("default", "examples", "deprecated"):
            continue
        if name in ("properties", "$defs", "definitions") and isinstance(below, dict):
            kept[name] = {one: _without_annotations(inner) for one, inner in below.items()}
        else:
            kept[name] = below if name in ("enum", "const") else _without_annotations(below)
    return kept
