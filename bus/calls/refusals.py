"""Refusals that say what to do instead, to people and to models (TOOL-3)."""

from __future__ import annotations

from collections.abc import Iterable

from bus.calls.asked import Asked
from bus.calls.capability import Capability
from bus.calls.gate import nearest
from bus.errors import BusError, ErrorInfo, error


def unknown(agent: str, name: str, known: Iterable[str]) -> BusError:
    """The refusal of a capability that the agent does not have."""
    near = nearest(name, list(known), cutoff=0.5)
    return error(
        "tool.unknown_capability",
        f"{agent} has no capability {name!r}" + (f"; did you mean {near!r}?" if near else ""),
        nearest=[near] if near else [],
        started=False,
    )


def instructive(failure: ErrorInfo, asked: Asked | None, capability: Capability | None) -> ErrorInfo:
    """A refusal of arguments with what a model needs to mend them; others as they are."""
    if failure.code != "tool.validation_failed" or capability is None or asked is None or "schema" in failure.details:
        return failure
    left = max(0, asked.repairs_left - 1)
    wrong = "; ".join(f"{one['path']}: {one['problem']}" for one in failure.details.get("errors", [])[:10])
    advice = (
        "Correct exactly these, keep the rest, and call it again."
        if asked.repairs_left
        else "Do not call it again with other guesses; say what is missing, or use another tool."
    )
    instruction = f"The call of {asked.tool_name} did not run, because its arguments do not fit. {wrong}. {advice}"
    details = {
        **failure.details,
        "schema": dict(capability.card.input_schema),
        "example": capability.card.example,
        "repairs_left": left,
        "instruction": instruction,
        "started": False,
    }
    return ErrorInfo(failure.code, failure.message, details, retryable=failure.retryable)
