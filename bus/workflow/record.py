"""The record of a workflow: how it stands, what it has been through, and who wrote last (WF-3).

Pure: a transition makes another record, or says why there is none. `record_store.py` writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

import orjson

from bus.errors import error
from bus.workflow.phases import Phase, Phases

ENDS = ("success", "error", "cancelled")
STATUSES = ("running", "paused", *ENDS)
# Older changes are counted and no longer told; the messages themselves are in the history.
CHANGES_KEPT = 40


class By(NamedTuple):
    """Who makes a change, and when."""

    writer: str
    at: datetime


class Change(NamedTuple):
    """One change: when, by whom, what."""

    at: datetime
    by: str
    what: str


class PhaseState(NamedTuple):
    """A phase that has begun. `ended_at` is None while it runs; `begun` counts how often it has begun."""

    began_at: datetime
    ended_at: datetime | None
    begun: int


@dataclass(frozen=True, slots=True)
class WorkflowRecord:
    """How a workflow stands. `revision` is its version: 0 before it is written.

    `phase` is the one that began last. `context` names where its context is kept, None without one. `changes_before`
    counts older changes than those in `changes`.
    """

    id: str
    name: str
    started_at: datetime
    updated_at: datetime
    by: str
    status: str = "running"
    phase: str | None = None
    branch: int = 0
    ended_at: datetime | None = None
    error: str | None = None
    context: str | None = None
    declared: Phases = field(default_factory=Phases, compare=False)
    phases: Mapping[str, PhaseState] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    changes_before: int = 0
    revision: int = 0

    @classmethod
    def begun(cls, id: str, name: str, by: By, *, phases: Phases | None = None) -> WorkflowRecord:
        """The first record of a workflow."""
        fresh = cls(id, name, by.at, by.at, by.writer, declared=phases or Phases())
        return fresh._changed(by, "begun")

    @property
    def is_ended(self) -> bool:
        """Whether nothing more is to come."""
        return self.status in ENDS

    def entered(self, phase: str, by: By) -> WorkflowRecord:
        """A phase begins; the same record when it runs already.

        Raises ToolError: `tool.cancelled` when the workflow has ended, and `tool.execution_failed`, retryable, while
        the phase before it in the declared order has not ended. It is refused rather than made to wait: who waits here
        holds a place that the phase before may need to come to its end.
        """
        state = self.phases.get(phase)
        if state is not None and state.ended_at is None and not self.is_ended:
            return self
        self._check_open(f"phase {phase!r} cannot begin")
        before = self.declared.before(phase)
        if before is not None:
            earlier = self.phases.get(before)
            if earlier is None or earlier.ended_at is None:
                has = "has not begun" if earlier is None else "has not ended"
                raise error(
                    "tool.execution_failed",
                    f"phase {phase!r} of workflow {self.id} cannot begin: {before!r} comes before it and {has}; "
                    f"end it first with `workflow.leave({before!r})`",
                    retryable=True,
                    reason="phase_order",
                    phase=phase,
                    before=before,
                )
        began = PhaseState(by.at, None, (state.begun if state else 0) + 1)
        changed = replace(self, phase=phase, phases={**self.phases, phase: began})
        return changed._changed(by, f"phase {phase} began" + (f" for time {began.begun}" if began.begun > 1 else ""))

    def left(self, phase: str, by: By) -> WorkflowRecord:
        """A phase ends; the same record when it has ended. Raises ToolError for one that never began."""
        state = self.phases.get(phase)
        if state is None:
            raise error(
                "tool.execution_failed",
                f"phase {phase!r} of workflow {self.id} cannot end: it has not begun",
                reason="phase_order",
                phase=phase,
            )
        if state.ended_at is not None:
            return self
        self._check_open(f"phase {phase!r} cannot end")
        phases = {**self.phases, phase: state._replace(ended_at=by.at)}
        return replace(self, phases=phases)._changed(by, f"phase {phase} ended")

    def ended(self, status: str, by: By, *, error: str | None = None) -> WorkflowRecord:
        """The workflow ends; the same record when it has ended so. One that ended otherwise stays as it ended."""
        if status not in ENDS:
            raise ValueError(f"{status!r} is not the end of a workflow: {', '.join(ENDS)}")
        if self.is_ended:
            return self
        changed = replace(self, status=status, ended_at=by.at, error=error)
        return changed._changed(by, f"ended: {status}" + (f", {error}" if error else ""))

    def resumed(self, by: By) -> WorkflowRecord:
        """A workflow that has ended goes on; the same record when it runs."""
        if not self.is_ended:
            return self
        return replace(self, status="running", ended_at=None, error=None)._changed(by, "goes on")

    def paused(self, what: str, by: By, *, whole: bool) -> WorkflowRecord:
        """A person paused it, or a part of it, which stands among the changes only. One that has ended stays so."""
        if self.is_ended:
            return self
        return (replace(self, status="paused") if whole else self)._changed(by, what)

    def unpaused(self, what: str, by: By, *, whole: bool) -> WorkflowRecord:
        """What was paused goes on."""
        if self.is_ended:
            return self
        is_paused = whole and self.status == "paused"
        return (replace(self, status="running") if is_paused else self)._changed(by, what)

    def cut_back(self, what: str, by: By) -> WorkflowRecord:
        """A person cancelled a part of it."""
        return self if self.is_ended else self._changed(by, what)

    def with_context(self, reference: str | None, by: By) -> WorkflowRecord:
        """Another reference to its context."""
        return replace(self, context=reference)._changed(by, f"context is {reference}")

    def checkpointed(self, name: str, by: By) -> WorkflowRecord:
        """A checkpoint was taken."""
        return self._counted("checkpoints")._changed(by, f"checkpoint {name}")

    def rolled_back(self, name: str, to: WorkflowRecord, branch: int, by: By) -> WorkflowRecord:
        """What was at a checkpoint is again, in a new branch; counts and changes stay as they are."""
        there = replace(
            self,
            status="running",
            ended_at=None,
            error=None,
            phase=to.phase,
            phases=to.phases,
            context=to.context,
            declared=to.declared,
            branch=branch,
        )
        return there._counted("rollbacks")._changed(by, f"rolled back to {name}, branch {branch}")

    def to_wire(self) -> bytes:
        """As JSON; the revision is the key's own."""
        return orjson.dumps(
            {
                "id": self.id,
                "name": self.name,
                "status": self.status,
                "phase": self.phase,
                "branch": self.branch,
                "started_at": self.started_at,
                "updated_at": self.updated_at,
                "ended_at": self.ended_at,
                "error": self.error,
                "by": self.by,
                "context": self.context,
                "declared": self.declared.to_wire(),
                "phases": {name: one._asdict() for name, one in self.phases.items()},
                "counts": self.counts,
                "changes": [one._asdict() for one in self.changes],
                "changes_before": self.changes_before,
            }
        )

    @classmethod
    def from_wire(cls, data: bytes, revision: int) -> WorkflowRecord:
        """Reads it back. Raises ValueError for what is no record."""
        try:
            read = orjson.loads(data)
            return cls(
                read["id"],
                read["name"],
                _time(read["started_at"]),
                _time(read["updated_at"]),
                read["by"],
                status=read["status"],
                phase=read["phase"],
                branch=read["branch"],
                ended_at=_maybe_time(read["ended_at"]),
                error=read["error"],
                context=read["context"],
                declared=Phases(Phase(one["name"], one["limit"]) for one in read["declared"]),
                phases={
                    name: PhaseState(_time(one["began_at"]), _maybe_time(one["ended_at"]), one["begun"])
                    for name, one in read["phases"].items()
                },
                counts=read["counts"],
                changes=tuple(Change(_time(one["at"]), one["by"], one["what"]) for one in read["changes"]),
                changes_before=read["changes_before"],
                revision=revision,
            )
        except (AttributeError, KeyError, TypeError, ValueError) as problem:
            raise ValueError(f"not the record of a workflow: {type(problem).__name__}: {problem}") from problem

    def _check_open(self, what: str) -> None:
        if self.is_ended:
            raise error(
                "tool.cancelled",
                f"{what}: workflow {self.id} has ended ({self.status})",
                reason="workflow_ended",
                status=self.status,
            )

    def _counted(self, what: str) -> WorkflowRecord:
        return replace(self, counts={**self.counts, what: self.counts.get(what, 0) + 1})

    def _changed(self, by: By, what: str) -> WorkflowRecord:
        changes = (*self.changes, Change(by.at, by.writer, what))
        return replace(
            self,
            by=by.writer,
            updated_at=by.at,
            counts={**self.counts, "changes": self.counts.get("changes", 0) + 1},
            changes=changes[-CHANGES_KEPT:],
            changes_before=self.changes_before + max(0, len(changes) - CHANGES_KEPT),
        )


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _maybe_time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
