"""Where the records of workflows are: written by compare-and-set, found by status without reading them all.

The record is the truth. Beside it stands an entry `<workflow>.run.<status>` by which the server counts and finds; it is
written before the record and the old one is taken away after, so a crash leaves one too many and never one too few, and
who lists believes the record.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from bus.broker.connection import Connection
from bus.broker.records import NOTHING, Record, Records, Write
from bus.broker.streams import StreamNames
from bus.broker.subjects import token
from bus.errors import BrokerError, BusError, error
from bus.workflow.conflict import Stand, conflict
from bus.workflow.fence import NO_FENCE, Fence
from bus.workflow.record import By, WorkflowRecord

MAX_CONFLICTS = 50
# The note that an entry is gone, for who reads at the moment.
GONE_TTL_S = 1

Transition = Callable[[WorkflowRecord, By], WorkflowRecord]


class RecordStore:
    """The records of one bus. `writer` is who changes them; it stands in every change and in every conflict."""

    __slots__ = ("_records", "_writer", "connection")

    def __init__(self, connection: Connection, *, writer: str = "") -> None:
        self.connection = connection
        self._writer = writer or connection.name
        self._records = Records(
            connection, StreamNames.of(connection.settings.namespace).workflows, writer=self._writer
        )

    async def read(self, workflow_id: str) -> WorkflowRecord | None:
        """The record; None for a workflow that has none (begun elsewhere than by `Bus.workflow`, or forgotten).

        Raises BrokerError; ValueError for one that somebody damaged.
        """
        found = await self._records.read(record_key(workflow_id))
        return None if found.value is None else WorkflowRecord.from_wire(found.value, found.revision)

    async def begin(self, fresh: Callable[[By], WorkflowRecord], *, goes_on: bool) -> WorkflowRecord:
        """Writes the first record of a workflow; `goes_on`: one that is there and has ended runs again.

        Safe to repeat. Raises BrokerError.
        """
        record = fresh(self._by())

        async def attempt() -> WorkflowRecord:
            await self._index(record)
            revision = await self._records.write(record_key(record.id), record.to_wire(), after=0)
            if revision is not None:
                return replace(record, revision=revision)
            there = await self.read(record.id)
            return there if there is not None else record

        # A repeated attempt may find its own.
        there = await self.connection.patiently(attempt)
        if goes_on and there.is_ended:
            return await self.change(there.id, WorkflowRecord.resumed)
        return there

    async def change(self, workflow_id: str, transition: Transition, *, fence: Fence = NO_FENCE) -> WorkflowRecord:
        """Makes a transition, again on what others write meanwhile; returns the record as it is then.

        A transition that changes nothing writes nothing. Raises what the transition raises; ToolError
        `tool.execution_failed` for a workflow without a record, and, naming both writers, for 50 conflicts in a row;
        BrokerError.
        """

        async def attempt() -> WorkflowRecord:
            found, before = NOTHING, None
            for conflicts in range(MAX_CONFLICTS):
                found = await self._records.read(record_key(workflow_id))
                before = self._known(workflow_id, found)
                written = await self._try(before, transition(before, self._by()), fence)
                if written is not None:
                    return written
                await asyncio.sleep(random.uniform(0, min(0.25, 0.002 * 2 ** min(conflicts, 7))))
            assert before is not None
            raise await self._lost(before)

        return await self.connection.patiently(attempt)

    async def change_from(
        self, read: WorkflowRecord, transition: Transition, *, fence: Fence = NO_FENCE
    ) -> WorkflowRecord:
        """Makes a transition of exactly the record that was read.

        Raises ToolError `tool.execution_failed`, retryable, when somebody has written since; `details.theirs` and
        `details.ours` name both. BrokerError `broker.unavailable` when the answer was lost: it may have happened.
        """
        written = await self._try(read, transition(read, self._by()), fence)
        if written is None:
            raise await self._lost(read)
        return written

    async def _try(self, before: WorkflowRecord, after: WorkflowRecord, fence: Fence) -> WorkflowRecord | None:
        if after is before:
            return before
        moves = after.status != before.status
        if moves:
            await self._index(after)
        write = Write(record_key(after.id), after.to_wire(), before.revision)
        revision = await fence.write(self._records, write)
        if revision is None:
            return None
        if moves:
            await self.unindex(after.id, before.status)
        return replace(after, revision=revision)

    async def _index(self, record: WorkflowRecord) -> None:
        await self._records.write(status_key(record.id, record.status), record.id.encode(), after=None)

    async def unindex(self, workflow_id: str, status: str) -> None:
        """Takes an entry by status away. What cannot be taken away now is passed over by who lists."""
        try:
            await self._records.take_away(status_key(workflow_id, status), ttl_s=GONE_TTL_S)
        except BrokerError:
            return

    async def _lost(self, ours: WorkflowRecord) -> BusError:
        found = await self._records.read(record_key(ours.id))
        return conflict(f"workflow {ours.id}", found, Stand(self._writer, ours.revision))

    def _known(self, workflow_id: str, found: Record) -> WorkflowRecord:
        if found.value is None:
            raise error(
                "tool.execution_failed",
                f"workflow {workflow_id} has no record; it begins with the first send of `Bus.workflow`",
                reason="no_record",
            )
        return WorkflowRecord.from_wire(found.value, found.revision)

    def _by(self) -> By:
        return By(self._writer, datetime.now(UTC))


def record_key(workflow_id: str) -> str:
    """The key of a workflow's record."""
    return f"{token(workflow_id)}.run.record"


def status_key(workflow_id: str, status: str) -> str:
    """The key by which a workflow is found under its status."""
    return f"{token(workflow_id)}.run.{status}"
