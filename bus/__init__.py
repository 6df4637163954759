"""A message bus for teams of agents, on NATS."""

from bus.agent import Agent
from bus.client import Bus, Workflow
from bus.config import Settings, SettingsError
from bus.delivery.drafts import Draft
from bus.delivery.letter import DeadLetter
from bus.delivery.message import Message
from bus.delivery.outcome import Outcome
from bus.delivery.settlement import RetryPolicy
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
from bus.workflow.artifacts import ArtifactRef
from bus.workflow.sightings import Sighting
from bus.workflow.story import Story

__all__ = [
    "Agent",
    "ArtifactRef",
    "BrokerError",
    "Bus",
    "BusError",
    "DeadLetter",
    "Draft",
    "Envelope",
    "ErrorInfo",
    "Message",
    "Outcome",
    "PermanentFailure",
    "RegistryError",
    "Rejected",
    "RetryLater",
    "RetryPolicy",
    "Settings",
    "SettingsError",
    "Sighting",
    "Story",
    "ToolError",
    "Workflow",
]
