"""The precheck: what a caller can say of arguments by the card, before anything is sent."""

from __future__ import annotations

from typing import Any

from bus.calls.gate import Gate
from bus.calls.index import Offer
from bus.errors import ErrorInfo, error


class Precheck:
    """Checks arguments against the cards of others; each schema is compiled once."""

    __slots__ = ("_gates",)

    def __init__(self) -> None:
        self._gates: dict[str, Gate] = {}

    def breach(self, offer: Offer, arguments: Any) -> ErrorInfo | None:
        """What is wrong with the arguments by the card, as far as this side can say."""
        gate = self._gates.get(offer.card.digest)
        if gate is None:
            try:
                gate = Gate(offer.card.input_schema, "arguments")
            except ValueError:
                return None  # Somebody else's schema; the callee has the last word.
            self._gates[offer.card.digest] = gate
        if gate.is_valid(arguments):
            return None
        problems = gate.problems(arguments)
        told = "; ".join(f"{one['path']}: {one['problem']}" for one in problems[:5])
        return error(
            "tool.validation_failed",
            f"the arguments of {offer.card.name} are wrong: {told}",
            errors=problems,
            schema=dict(offer.card.input_schema),
            started=False,
        ).info
