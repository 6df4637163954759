"""Drafts of calls: what to call, with what, and how patiently."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import BaseModel

from bus.calls.asked import MAX_REPAIRS, Window
from bus.calls.card import is_wanted
from bus.envelope import Envelope


class CallDraft(NamedTuple):
    """One call for `call_many`; the fields mean what they mean for `call`. `id` pairs it with its result."""

    capability: str
    arguments: BaseModel | dict[str, Any] | Any = None
    id: str | None = None
    timeout_s: float | None = None
    agent: str | None = None
    version: str | None = None
    idempotency_key: str | None = None
    derived_key: str | None = None
    retries: int = 2
    repairs_left: int = MAX_REPAIRS
    max_result_bytes: int | None = None
    validate: bool = False
    workflow_id: str | None = None
    session_id: str | None = None
    observe: Window | None = None

    def to_json(self) -> Any:
        """The arguments as JSON values."""
        if self.arguments is None:
            return {}
        if isinstance(self.arguments, BaseModel):
            return self.arguments.model_dump(mode="json", by_alias=True)
        return self.arguments

    def workflow(self, cause: Envelope | None) -> str | None:
        """The workflow that the call belongs to: its own, else its cause's."""
        return self.workflow_id or (cause.workflow_id if cause is not None else None)

    def check(self) -> None:
        """Raises ValueError for a draft that could never be sent."""
        if self.timeout_s is not None and self.timeout_s <= 0:
            raise ValueError(f"timeout_s is {self.timeout_s}, it must be above 0")
        for name, text, limit in (
            ("id", self.id, 128),
            ("workflow_id", self.workflow_id, 128),
            ("session_id", self.session_id, 128),
            ("idempotency_key", self.idempotency_key, 256),
        ):
            if text is not None and not 0 < len(text) <= limit:
                raise ValueError(f"{name} of a call has 1 to {limit} characters")
        if self.version is not None and not is_wanted(self.version):
            raise ValueError(f"version is {self.version!r}, it must be such as 1, 1.2 or 1.2.3")
