"""A decision of a person about a workflow, or about everything below one of its messages (WF-7). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from bus.broker.subjects import token
from bus.workflow.branches import BRANCH


class Verb(StrEnum):
    """What is decided."""

    CANCEL = "cancel"
    """Nothing of it is handled any more, for good."""
    PAUSE = "pause"
    """Nothing of it begins until it is resumed."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision. `message_id`: it is about that message and all that it caused; None: about the whole workflow.

    It counts for messages up to `branch`, so that a rollback makes a new beginning. `is_active` is False for a pause
    that was resumed. `revision` orders the decisions of a bus.
    """

    verb: Verb
    workflow_id: str
    message_id: str | None
    by: str
    at: datetime
    reason: str | None = None
    branch: int = 0
    is_active: bool = True
    revision: int = 0

    @property
    def name(self) -> str:
        """What its key says after `control.`."""
        return self.verb.value if self.message_id is None else f"{self.verb}.{token(self.message_id)}"

    @property
    def key(self) -> str:
        """Its key in the bucket of the workflows."""
        return f"{token(self.workflow_id)}.control.{self.name}"

    @property
    def told(self) -> str:
        """The decision in words: who, below what, why."""
        did = "cancelled" if self.verb is Verb.CANCEL else "paused"
        below = "" if self.message_id is None else f" with all below {self.message_id}"
        return f"{did}{below} by {self.by}" + (f" ({self.reason})" if self.reason else "")

    def to_wire(self) -> dict[str, Any]:
        """The document; its revision is the key's own."""
        return {
            "workflow_id": self.workflow_id,
            "verb": self.verb,
            "message_id": self.message_id,
            "by": self.by,
            "at": self.at,
            "reason": self.reason,
            BRANCH: self.branch,
            "is_active": self.is_active,
        }

    @classmethod
    def of(cls, document: Mapping[str, Any], revision: int) -> Decision | None:
        """Reads a document; None for one that says something else, or nothing that can be read."""
        try:
            read = cls(
                Verb(document["verb"]),
                document["workflow_id"],
                document["message_id"],
                str(document["by"]),
                datetime.fromisoformat(document["at"]),
                document["reason"],
                int(document[BRANCH]),
                bool(document["is_active"]),
                revision,
            )
        except (KeyError, TypeError, ValueError):
            return None
        return read if isinstance(read.workflow_id, str) and isinstance(read.message_id, str | None) else None
