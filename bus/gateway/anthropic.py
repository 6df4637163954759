"""Tools and tool calls as Anthropic's Messages API writes them (TOOL-4).

Plain dicts on both sides; objects of the official SDK are read too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from bus.calls.card import Card
from bus.calls.index import Offer
from bus.gateway.strict_tools import StrictRules, strict_problems
from bus.gateway.tool_call import ToolAnswer, ToolCall, as_objects
from bus.gateway.tool_schema import fitted
from bus.gateway.toolbox import Toolbox, ToolDefinitions, described

CUT_OFF = "; the response ended at its token limit, so write less in one call"

_PROPERTY_NAMES = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_STRICT = StrictRules(
    keywords=frozenset({"format", "default"}),
    formats=frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}),
    is_recursion_taken=False,
)


def anthropic_tools(tools: Toolbox | Iterable[Card | Offer], *, strict: bool = False) -> ToolDefinitions:
    """Tool definitions for `client.messages.create(tools=...)`.

    `strict` asks for strict mode wherever a schema qualifies; the others stay as they are. The `notes` of the list say
    what could not be kept, which schemas do not qualify, and which tools were left out because the provider takes
    no such names of arguments. Raises ValueError for two capabilities with one tool name.
    """
    return Messages().definitions(Toolbox.of(tools), strict=strict)


class Messages:
    """The Messages API, whose calls and answers are blocks of a message's content."""

    def definitions(self, tools: Toolbox, *, strict: bool) -> ToolDefinitions:
        """`{"name": ..., "description": ..., "input_schema": ...}` for each."""
        found, notes = [], []
        for name, card in tools.cards.items():
            try:
                schema = fitted(card.input_schema, _PROPERTY_NAMES)
            except ValueError as problem:
                notes.append(f"{card.name}: left out: {problem}")
                continue
            description, said = described(card, schema.told, None)
            tool: dict[str, Any] = {"name": name, "description": description, "input_schema": schema.schema}
            if strict:
                rule = ["arguments: a rule in the description"] if schema.told else []
                problems = rule or strict_problems(schema.schema, _STRICT)
                said += [f"not strict: {problem}" for problem in problems]
                if not problems:
                    tool["strict"] = True
            notes += [f"{card.name}: {note}" for note in [*schema.notes, *said]]
            found.append(tool)
        return ToolDefinitions(found, notes)

    def reads(self, response: Mapping[str, Any]) -> bool:
        """A message whose content is blocks."""
        return isinstance(response.get("content"), list) and response.get("role", "assistant") == "assistant"

    def calls(self, response: Mapping[str, Any]) -> list[ToolCall]:
        """Blocks of the type `tool_use`; those of tools that the provider runs itself are not ours to answer."""
        hint = CUT_OFF if response.get("stop_reason") == "max_tokens" else ""
        return [
            ToolCall.read(block.get("id"), block.get("name"), block.get("input"), hint=hint)
            for block in as_objects(response["content"])
            if block.get("type") == "tool_use"
        ]

    def messages(self, answers: list[ToolAnswer]) -> list[dict[str, Any]]:
        """One message of the user with a `tool_result` for each call, and nothing before them."""
        blocks: list[dict[str, Any]] = []
        for one in answers:
            block = {"type": "tool_result", "tool_use_id": one.call.id, "content": one.text}
            blocks.append({**block, "is_error": True} if one.is_error else block)
        return [{"role": "user", "content": blocks}] if blocks else []
