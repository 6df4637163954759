"""A message bus for teams of agents, on NATS."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bus.agent import Agent
    from bus.calls.call import Call
    from bus.calls.card import Card
    from bus.calls.draft import CallDraft
    from bus.client import Bus
    from bus.config import Settings, SettingsError
    from bus.contracts.result import Result
    from bus.contracts.upcast import Contracts
    from bus.delivery.drafts import Draft
    from bus.delivery.letter import DeadLetter
    from bus.delivery.message import Message
    from bus.delivery.outcome import Outcome
    from bus.delivery.settlement import RetryPolicy
    from bus.delivery.workflow import Workflow
    from bus.envelope import Envelope
    from bus.errors import (
        BrokerError,
        BusError,
        ErrorInfo,
        PermanentFailure,
        RegistryError,
        Rejected,
        RetryLater,
        ToolError,
    )
    from bus.trust.budget import Budget
    from bus.workflow.artifacts import ArtifactRef
    from bus.workflow.sightings import Sighting
    from bus.workflow.story import Story

__all__ = [
    "Agent",
    "ArtifactRef",
    "BrokerError",
    "Budget",
    "Bus",
    "BusError",
    "Call",
    "CallDraft",
    "Card",
    "Contracts",
    "DeadLetter",
    "Draft",
    "Envelope",
    "ErrorInfo",
    "Message",
    "Outcome",
    "PermanentFailure",
    "RegistryError",
    "Rejected",
    "Result",
    "RetryLater",
    "RetryPolicy",
    "Settings",
    "SettingsError",
    "Sighting",
    "Story",
    "ToolError",
    "Workflow",
]

# Imported when first asked for: the command is then ours before the time that imports take, Ctrl-C included.
_HOMES = {
    "Agent": "bus.agent",
    "ArtifactRef": "bus.workflow.artifacts",
    "BrokerError": "bus.errors",
    "Budget": "bus.trust.budget",
    "Bus": "bus.client",
    "BusError": "bus.errors",
    "Call": "bus.calls.call",
    "CallDraft": "bus.calls.draft",
    "Card": "bus.calls.card",
    "Contracts": "bus.contracts.upcast",
    "DeadLetter": "bus.delivery.letter",
    "Draft": "bus.delivery.drafts",
    "Envelope": "bus.envelope",
    "ErrorInfo": "bus.errors",
    "Message": "bus.delivery.message",
    "Outcome": "bus.delivery.outcome",
    "PermanentFailure": "bus.errors",
    "RegistryError": "bus.errors",
    "Rejected": "bus.errors",
    "Result": "bus.contracts.result",
    "RetryLater": "bus.errors",
    "RetryPolicy": "bus.delivery.settlement",
    "Settings": "bus.config",
    "SettingsError": "bus.config",
    "Sighting": "bus.workflow.sightings",
    "Story": "bus.workflow.story",
    "ToolError": "bus.errors",
    "Workflow": "bus.delivery.workflow",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bus' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
