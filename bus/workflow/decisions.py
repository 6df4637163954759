"""What a person decides about a workflow, written down: cancel, pause, resume (WF-7).

One document is the decision, and every replica follows it (`control.py`). The record of the workflow is changed after
it, so who finds the decision without its mark in the record makes it again: every step may be repeated.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

import orjson

from bus.broker.connection import Connection
from bus.broker.records import Records
from bus.broker.streams import StreamNames
from bus.errors import ToolError, error
from bus.workflow.branches import branch_now
from bus.workflow.decision import Decision, Verb
from bus.workflow.record import WorkflowRecord
from bus.workflow.record_store import RecordStore

MAX_CONFLICTS = 20
MAX_REASON_CHARS = 500


class Answer(StrEnum):
    """What became of a decision."""

    DONE = "done"
    ALREADY = "already"
    """It stood there before; nothing was changed."""
    ENDED = "ended"
    """The workflow has ended; nothing was changed."""
    NOTHING = "nothing"
    """There was nothing to resume."""


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision as it stands now. `record` is None for a workflow without one."""

    answer: Answer
    decision: Decision | None
    record: WorkflowRecord | None


class Decisions:
    """Decides about one workflow. `writer` is who does it. Everything raises BrokerError and may then be repeated."""

    __slots__ = ("_connection", "_id", "_records", "_store", "_writer")

    def __init__(self, connection: Connection, workflow_id: str, *, writer: str = "") -> None:
        self._connection = connection
        self._id = workflow_id
        self._writer = writer or connection.name
        names = StreamNames.of(connection.settings.namespace)
        self._records = Records(connection, names.workflows, writer=self._writer)
        self._store = RecordStore(connection, writer=self._writer)

    async def cancel(self, message_id: str | None = None, *, reason: str | None = None) -> Decided:
        """Cancels the workflow, or a message and everything that it caused, for good.

        What waits is set aside, what runs is cancelled and cannot send or store anything more. The whole workflow ends
        as cancelled; one that has ended stays as it ended. A rollback begins anew all the same.
        """
        record = await self._store.read(self._id)
        before = await self._standing(Verb.CANCEL, message_id, record)
        if before is not None and before.is_active:
            # Whoever wrote it may have gone before the record said so.
            return Decided(Answer.ALREADY, before, await self._mark(before, record))
        if record is not None and record.is_ended:
            return Decided(Answer.ENDED, None, record)
        decision, is_ours = await self._decide(Verb.CANCEL, message_id, reason, record)
        return Decided(Answer.DONE if is_ours else Answer.ALREADY, decision, await self._mark(decision, record))

    async def pause(self, message_id: str | None = None, *, reason: str | None = None) -> Decided:
        """Lets nothing of the workflow begin, or nothing below a message, until it is resumed.

        What runs comes to its end; what it sends waits too.
        """
        record = await self._store.read(self._id)
        if record is not None and record.is_ended:
            return Decided(Answer.ENDED, None, record)
        decision, is_ours = await self._decide(Verb.PAUSE, message_id, reason, record)
        return Decided(Answer.DONE if is_ours else Answer.ALREADY, decision, await self._mark(decision, record))

    async def resume(self, message_id: str | None = None) -> Decided:
        """Takes a pause back. What waits goes on where it was, in the order of its partition keys."""
        record = await self._store.read(self._id)
        before = await self._standing(Verb.PAUSE, message_id, record)
        if before is None or not before.is_active:
            return Decided(Answer.NOTHING, before, record)
        for _ in range(MAX_CONFLICTS):
            ended = replace(before, is_active=False, by=self._writer, at=datetime.now(UTC), reason=None)
            revision = await self._records.write(ended.key, orjson.dumps(ended.to_wire()), after=before.revision)
            if revision is not None:
                ended = replace(ended, revision=revision)
                return Decided(Answer.DONE, ended, await self._mark(ended, record))
            found = await self._read(before)
            if found is None or not found.is_active:
                return Decided(Answer.NOTHING, found, record)
            before = found
        raise self._busy()

    async def _standing(self, verb: Verb, message_id: str | None, record: WorkflowRecord | None) -> Decision | None:
        """The decision that counts in the newest branch."""
        found = await self._read(await self._new(verb, message_id, None, record))
        return None if found is None or found.branch < await self._branch(record) else found

    async def _decide(
        self, verb: Verb, message_id: str | None, reason: str | None, record: WorkflowRecord | None
    ) -> tuple[Decision, bool]:
        wanted = await self._new(verb, message_id, reason, record)
        for conflicts in range(MAX_CONFLICTS):
            there = await self._records.read(wanted.key)
            found = None if there.value is None else Decision.of(orjson.loads(there.value), there.revision)
            if found is not None and found.is_active and found.branch >= wanted.branch:
                return found, False
            revision = await self._records.write(wanted.key, orjson.dumps(wanted.to_wire()), after=there.revision)
            if revision is not None:
                return replace(wanted, revision=revision), True
            await asyncio.sleep(random.uniform(0, 0.005 * 2 ** min(conflicts, 5)))
        raise self._busy()

    async def _mark(self, decision: Decision, record: WorkflowRecord | None) -> WorkflowRecord | None:
        """Says it in the record, where there is one and it does not say so yet."""
        if record is None:
            return None
        what, whole = decision.told.partition(" by ")[0], decision.message_id is None
        if decision.reason:
            what += f": {decision.reason}"
        if decision.verb is Verb.CANCEL:
            if whole:
                return await self._store.change(self._id, lambda one, by: one.ended("cancelled", by))
            return await self._store.change(
                self._id, lambda one, by: one if _says(one, what) else one.cut_back(what, by)
            )
        if decision.is_active:
            return await self._store.change(
                self._id, lambda one, by: one if _says(one, what) else one.paused(what, by, whole=whole)
            )
        what = what.replace("paused", "resumed")
        return await self._store.change(
            self._id, lambda one, by: one if _says(one, what) else one.unpaused(what, by, whole=whole)
        )

    async def _new(
        self, verb: Verb, message_id: str | None, reason: str | None, record: WorkflowRecord | None
    ) -> Decision:
        branch = await self._branch(record)
        reason = reason[:MAX_REASON_CHARS] if reason else None
        return Decision(verb, self._id, message_id, self._writer, datetime.now(UTC), reason, branch)

    async def _branch(self, record: WorkflowRecord | None) -> int:
        return record.branch if record is not None else await branch_now(self._records, self._id)

    async def _read(self, like: Decision) -> Decision | None:
        found = await self._records.read(like.key)
        return None if found.value is None else Decision.of(orjson.loads(found.value), found.revision)

    def _busy(self) -> ToolError:
        problem = error(
            "tool.execution_failed",
            f"several people decide about workflow {self._id} at once; look at it, then decide again",
            retryable=True,
        )
        assert isinstance(problem, ToolError)
        return problem


def _says(record: WorkflowRecord, what: str) -> bool:
    """Whether the last decision that the record tells of is this one."""
    told = [one.what for one in record.changes if one.what.startswith(("cancelled", "paused", "resumed"))]
    return bool(told) and told[-1] == what
