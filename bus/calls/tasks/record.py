"""The record of a task, and its state machine: pure, every step gives a new record or says that it is not allowed.

    queued -> running -> succeeded | failed | cancelled
    queued -> failed | cancelled
    running -> queued            handed back, or to be tried again

A terminal state never changes. Whoever writes does so by compare-and-set, so of two last words one counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Self

import orjson

from bus.envelope.timestamps import instant, is_timestamp
from bus.errors import ErrorInfo, error

# How much later than its deadline a message of the task may still come, by anybody's clock.
LATE_S = 600.0


class TaskState(StrEnum):
    """Where a task stands; `status` is the same in the envelope's words."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Whether it is the last one."""
        return self in (TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED)

    @property
    def status(self) -> str:
        """`pending`, `success`, `error` or `cancelled`."""
        return _STATUS[self]


_STATUS = {
    TaskState.QUEUED: "pending",
    TaskState.RUNNING: "pending",
    TaskState.SUCCEEDED: "success",
    TaskState.FAILED: "error",
    TaskState.CANCELLED: "cancelled",
}


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """What is known of a task. `sender` asked for it, `agent` does it, `digest` is that of its arguments.

    `attempts` counts the runs that began, those left out that a stopping replica gave back; `replica` is who runs it
    now, or ran it last. `outcome` is the payload of a `tool_call_result`, in a terminal state only; a large one
    is `data_ref`, the reference to it. `parent` is the task in whose course this one was asked for.
    """

    id: str
    agent: str
    capability: str
    sender: str
    digest: str
    trace_id: str
    submitted_at: datetime
    deadline_at: datetime
    workflow_id: str | None = None
    session_id: str | None = None
    parent: str | None = None
    state: TaskState = TaskState.QUEUED
    attempts: int = 0
    replica: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    outcome: Mapping[str, Any] | None = field(default=None, hash=False)
    data_ref: str | None = None

    @property
    def is_terminal(self) -> bool:
        """Whether it has ended; then nothing changes any more."""
        return self.state.is_terminal

    def begun(self, replica: str, now: datetime) -> Self | None:
        """One run begins, also in place of one whose replica has died."""
        if self.is_terminal:
            return None
        return replace(
            self, state=TaskState.RUNNING, attempts=self.attempts + 1, replica=replica, started_at=now, outcome=None
        )

    def given_back(self, attempt: int, *, counts: bool) -> Self | None:
        """The run `attempt` ended without a last word; `counts` is False when that was not the task's fault."""
        if not self.is_run(attempt):
            return None
        return replace(self, state=TaskState.QUEUED, attempts=attempt if counts else attempt - 1, replica=None)

    def succeeded(self, outcome: Mapping[str, Any] | None, data_ref: str | None, now: datetime) -> Self | None:
        """Any run may say so: the work is done, whoever did it."""
        return self._ended(TaskState.SUCCEEDED, outcome, data_ref, now)

    def failed(self, attempt: int, outcome: Mapping[str, Any], now: datetime) -> Self | None:
        """Only the newest run may say so: another one may still succeed."""
        return self._ended(TaskState.FAILED, outcome, None, now) if attempt == self.attempts else None

    def cancelled(self, by: str, now: datetime) -> Self | None:
        """Somebody does not want it any more."""
        told = error("tool.cancelled", f"the task {self.id} of {self.capability} was cancelled by {by}", by=by)
        return self._ended(TaskState.CANCELLED, self.refusal(told.info), None, now)

    def expired(self, now: datetime) -> Self | None:
        """Its deadline has passed; None when it has not, or the task has ended before."""
        if now < self.deadline_at:
            return None
        if self.state is TaskState.QUEUED:
            told = error("protocol.expired", f"the task {self.id} of {self.capability} did not begin in time")
        else:
            told = error(
                "tool.timeout", f"the task {self.id} of {self.capability} did not end in time", retryable=False
            )
        return self._ended(TaskState.FAILED, self.refusal(told.info), None, now)

    def is_run(self, attempt: int) -> bool:
        """Whether the run `attempt` is the one that goes on now."""
        return self.state is TaskState.RUNNING and self.attempts == attempt

    def refusal(self, info: ErrorInfo) -> dict[str, Any]:
        """The outcome of a task that ends with this error."""
        meta = {"tool_name": self.capability, "trace_id": self.trace_id, "task_id": self.id}
        return {"tool_call_id": self.id, "ok": False, "error": info.to_wire(), "meta": meta}

    def lives_for_s(self, now: datetime, window_s: float) -> float:
        """How long it is kept: the window after its end, and never shorter than a message of it may come."""
        until = max(self.deadline_at, now) if self.is_terminal else self.deadline_at + timedelta(seconds=window_s)
        after_s = window_s if self.is_terminal else 0.0
        return max(after_s, (until - now).total_seconds() + LATE_S)

    def _ended(
        self, state: TaskState, outcome: Mapping[str, Any] | None, data_ref: str | None, now: datetime
    ) -> Self | None:
        if self.is_terminal:
            return None
        return replace(self, state=state, outcome=outcome, data_ref=data_ref, ended_at=now)

    def to_wire(self) -> dict[str, Any]:
        """The JSON object that stands for it in the bucket; members without a value are left out."""
        found = {
            "task_id": self.id,
            "agent": self.agent,
            "capability": self.capability,
            "from": self.sender,
            "arguments": self.digest,
            "trace_id": self.trace_id,
            "workflow_id": self.workflow_id,
            "session_id": self.session_id,
            "parent": self.parent,
            "state": self.state.value,
            "attempts": self.attempts,
            "replica": self.replica,
            "submitted_at": _told(self.submitted_at),
            "deadline_at": _told(self.deadline_at),
            "started_at": _told(self.started_at),
            "ended_at": _told(self.ended_at),
            "outcome": self.outcome,
            "data_ref": self.data_ref,
        }
        return {name: value for name, value in found.items() if value is not None}

    def encode(self) -> bytes:
        """Its bytes. Equal records have equal bytes."""
        return orjson.dumps(self.to_wire())

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Reads what `encode` wrote; unknown members are ignored. ValueError, naming the member, for anything else."""
        wire = orjson.loads(data)
        if not isinstance(wire, dict):
            raise ValueError("a task is a JSON object")
        texts = {
            name: _text(wire, name) for name in ("task_id", "agent", "capability", "from", "arguments", "trace_id")
        }
        maybe = {name: _text(wire, name) if name in wire else None for name in _OPTIONAL_TEXTS}
        attempts, outcome = wire.get("attempts"), wire.get("outcome")
        if type(attempts) is not int or attempts < 0:
            raise ValueError("attempts must be a whole number from 0")
        if outcome is not None and not isinstance(outcome, dict):
            raise ValueError("outcome must be an object")
        record = cls(
            id=texts["task_id"],
            agent=texts["agent"],
            capability=texts["capability"],
            sender=texts["from"],
            digest=texts["arguments"],
            trace_id=texts["trace_id"],
            submitted_at=_time(wire, "submitted_at"),
            deadline_at=_time(wire, "deadline_at"),
            state=TaskState(str(wire.get("state"))),
            attempts=attempts,
            started_at=_time(wire, "started_at") if "started_at" in wire else None,
            ended_at=_time(wire, "ended_at") if "ended_at" in wire else None,
            outcome=outcome,
            **maybe,
        )
        if record.is_terminal is (outcome is None and record.data_ref is None):
            raise ValueError("a task has an outcome or data_ref when it has ended, and only then")
        return record


_OPTIONAL_TEXTS = ("workflow_id", "session_id", "parent", "replica", "data_ref")


def _told(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _text(wire: Mapping[str, Any], name: str) -> str:
    value = wire.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be text")
    return value


def _time(wire: Mapping[str, Any], name: str) -> datetime:
    value = wire.get(name)
    if not is_timestamp(value):
        raise ValueError(f"{name} must be an RFC 3339 time with a zone")
    return instant(str(value))
