"""The capabilities that a model may use, each once, by the names of their tools (TOOL-4)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import orjson

from bus.calls.card import Card
from bus.calls.index import Offer
from bus.gateway.tool_names import ToolNames


class ToolDefinitions(list[dict[str, Any]]):
    """Tool definitions as a provider takes them, plain dicts. `notes` say what of the cards could not be kept."""

    def __init__(self, definitions: Iterable[dict[str, Any]], notes: Iterable[str]) -> None:
        super().__init__(definitions)
        self.notes = tuple(notes)


@dataclass(frozen=True, slots=True)
class Toolbox:
    """Cards by tool name. Equal cards give equal toolboxes, in every process."""

    cards: Mapping[str, Card]
    names: ToolNames

    @classmethod
    def of(cls, tools: Toolbox | Iterable[Card | Offer]) -> Toolbox:
        """From cards, or from what `bus.capabilities.find()` gives.

        A capability that is offered in several versions is taken in the newest one, and calls ask for that.
        """
        if isinstance(tools, Toolbox):
            return tools
        cards: dict[str, Card] = {}
        for tool in tools:
            card = tool.card if isinstance(tool, Offer) else tool
            known = cards.get(card.name)
            if known is None or _age(known) < _age(card):
                cards[card.name] = card
        names = ToolNames.of(sorted(cards))
        return cls(MappingProxyType({names.tools[name]: cards[name] for name in sorted(cards)}), names)

    def nearest(self, name: str) -> list[str]:
        """Up to three tools that a model may have meant."""
        return difflib.get_close_matches(name[:128].replace(".", "-"), list(self.cards), n=3, cutoff=0.5)


def _age(card: Card) -> tuple[Any, ...]:
    """Orders versions; of one version the release comes after its previews, and the digest decides what is left."""
    release, _, preview = card.version.partition("+")[0].partition("-")
    return (*(int(part) for part in release.split(".")), not preview, preview, card.digest)


def wanted_version(card: Card) -> str:
    """What calls made for this card ask for."""
    return card.version.partition("+")[0].partition("-")[0]


def described(card: Card, told: str, max_chars: int | None) -> tuple[str, list[str]]:
    """The description of a tool with its example, and what did not fit into `max_chars`."""
    parts, notes = [card.description.strip()], []
    example = None if card.example is None else f"Example arguments: {orjson.dumps(card.example).decode()}"
    for name, part in (("the rule about its arguments", told), ("the example", example)):
        if not part:
            continue
        if max_chars is not None and len("\n\n".join([*parts, part])) > max_chars:
            notes.append(f"{name} does not fit into the description")
        else:
            parts.append(part)
    text = "\n\n".join(parts)
    if max_chars is not None and len(text) > max_chars:
        notes.append(f"the description is cut to {max_chars} characters")
        text = f"{text[: max_chars - 1].rstrip()}…"
    return text, notes
