"""Cards that the tests of this folder share."""

from __future__ import annotations

from typing import Any

from bus import Card


def card(name: str = "calculator.add", **fields: Any) -> Card:
    """A card of a calculator, unless told otherwise."""
    return Card.checked({"name": name, "description": "Adds two numbers.", "input_schema": SUM, **fields})


SUM: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
