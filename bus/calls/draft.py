"""Drafts of calls: what to call, with what, and how patiently."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import BaseModel

from bus.calls.asked import MAX_REPAIRS


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

    def to_json(self) -> Any:
        """The arguments as JSON values."""
        if self.arguments is None:
            return {}
        if isinstance(self.arguments, BaseModel):
            return self.arguments.model_dump(mode="json", by_alias=True)
        return self.arguments
