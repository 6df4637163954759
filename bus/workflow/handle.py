"""What a handler or a client can do with the workflow that it works for: record, phases, slots, checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from functools import partial

from bus.broker.connection import Connection
from bus.broker.records import Records
from bus.broker.streams import StreamNames
from bus.envelope import Envelope
from bus.errors import error
from bus.workflow.branches import branch_now, branch_of
from bus.workflow.checkpoints import Checkpoint, Checkpoints, left_behind
from bus.workflow.control import ControlWatch
from bus.workflow.decisions import Decided, Decisions
from bus.workflow.fence import Fence
from bus.workflow.record import By, WorkflowRecord
from bus.workflow.record_store import RecordStore, Transition
from bus.workflow.rollback import Rollback, Rollbacks
from bus.workflow.slots import TIMEOUT_S, TTL_S, Held, Place, Slot, Slots
from bus.workflow.state import WorkflowState


class WorkflowHandle:
    """One workflow in one branch, as `message.workflow` and `Bus.workflow` give it. Every method raises BrokerError."""

    __slots__ = ("_connection", "_held", "_id", "_records", "_slots", "_writer", "branch")

    def __init__(
        self,
        connection: Connection,
        workflow_id: str | None,
        *,
        branch: int | None,
        writer: str,
        check: Callable[[], None] | None = None,
    ) -> None:
        self._connection = connection
        self._id = workflow_id
        self._writer = writer
        self._records = RecordStore(connection, writer=writer)
        self._slots = Records(connection, StreamNames.of(connection.settings.namespace).workflows, writer=writer)
        self._held = Held(check=check)
        self.branch = branch

    @property
    def id(self) -> str:
        """Its id. Raises Rejected `protocol.malformed` for a message outside of any workflow."""
        if self._id is None:
            raise error("protocol.malformed", "this message belongs to no workflow", path="workflow_id")
        return self._id

    @property
    def fence(self) -> Fence:
        """What everything passes that is done for it: the slots that are held."""
        return self._held

    @property
    def holds_slots(self) -> bool:
        """Whether there are any."""
        return self._held.is_any

    @property
    def state(self) -> WorkflowState:
        """The documents that all agents of the workflow share."""
        return self.documents()

    def documents(self, below: str = "") -> WorkflowState:
        """The documents of one family of the bus itself; without one, those of users."""
        return WorkflowState(
            self._connection, self._id, below=below, branch=self.branch, writer=self._writer, fence=self._held
        )

    async def record(self) -> WorkflowRecord | None:
        """How the workflow stands; None for one that was not begun by `Bus.workflow`."""
        return await self._records.read(self.id)

    async def enter(self, phase: str) -> WorkflowRecord:
        """A phase begins; does nothing when it runs already.

        Raises ToolError `tool.execution_failed`, retryable, while the phase before it in the declared order has not
        ended, and `tool.cancelled` when the workflow has ended.
        """
        return await self._change(lambda record, by: record.entered(phase, by))

    async def leave(self, phase: str, *, checkpoint: bool = True) -> WorkflowRecord:
        """A phase ends, and a checkpoint of its name is taken; does nothing when it has ended and has one.

        Raises ToolError as `enter`, and for a phase that never began.
        """
        record = await self._change(lambda record, by: record.left(phase, by))
        begun = record.phases[phase].begun
        if checkpoint:
            before = await self._checkpoints().get(phase)
            if before is None or (before.branch, before.begun) != (record.branch, begun):
                await self._take(phase, begun=begun)
        return record

    async def checkpoint(self, name: str) -> Checkpoint:
        """Keeps how the workflow stands under a name, for `rollback`; a checkpoint of that name is replaced.

        Kept are the documents and the context, the record, and what is in flight: what is being handled at the
        moment counts as in flight, this message too, and runs again after a rollback. Raises ToolError
        `tool.cancelled` in a branch that was left, `agent.busy` under a slot that is lost; BrokerError.
        """
        return await self._take(name)

    async def checkpoints(self) -> dict[str, Checkpoint]:
        """The checkpoints by name, the oldest first."""
        return {one.name: one for one in await self._checkpoints().known()}

    async def rollback(self, name: str) -> Rollback:
        """The workflow stands again as at a checkpoint, or at the end of a phase, in a new branch.

        What is in flight is cancelled, what comes late is set aside, and the messages that were in flight at the
        checkpoint are sent once more. For clients and people: a handler's own message is cancelled by it. Raises
        ToolError `tool.execution_failed` when it cannot, and has then changed nothing; BrokerError.
        """
        return await Rollbacks(self._connection, self.id, writer=self._writer).to(name)

    async def cancel(self, message_id: str | None = None, *, reason: str | None = None) -> Decided:
        """Cancels the workflow, or a message and everything that it caused, for good; see `Decisions.cancel`."""
        return await self._decisions().cancel(message_id, reason=reason)

    async def pause(self, message_id: str | None = None, *, reason: str | None = None) -> Decided:
        """Lets nothing of it begin, or nothing below a message, until `resume`; see `Decisions.pause`."""
        return await self._decisions().pause(message_id, reason=reason)

    async def resume(self, message_id: str | None = None) -> Decided:
        """What was paused goes on where it was; see `Decisions.resume`."""
        return await self._decisions().resume(message_id)

    @contextlib.asynccontextmanager
    async def slot(
        self, phase: str, *, key: str = "", limit: int | None = None, ttl_s: float = TTL_S, timeout_s: float = TIMEOUT_S
    ) -> AsyncIterator[Slot]:
        """Works in a phase while holding one of its slots for `key`; over all replicas there are `limit` of them.

            async with message.slot("draft", key="document 7", limit=1):
                ...

        The limit is by default the declared one of the phase, else 1. The phase begins with it, as by `enter`. It waits
        for a slot up to `timeout_s`, in the order of asking. The slot is renewed while it is held, given back at the
        end, and free `ttl_s` (at least 1) after its holder died. A holder that was stopped for longer, or blocked its
        event loop, has lost it: what it then sends, writes or stores is refused, and so is leaving the block.

        Raises ToolError `agent.busy`, retryable, when no slot is free in time or the slot is lost; as `enter` when
        the phase may not begin; ValueError for a limit that is not the declared one; BrokerError.
        """
        declared = await self._declared_limit(phase)
        if limit is not None and declared is not None and limit != declared:
            raise ValueError(f"the phase {phase!r} declares a limit of {declared}, this slot says {limit}")
        branch = self.branch if self.branch is not None else await branch_now(self._slots, self.id)
        slots = Slots(self._slots, self._writer)
        place = Place(self.id, branch, phase, key)
        taken = await slots.take(place, limit=limit or declared or 1, ttl_s=max(1.0, ttl_s), timeout_s=timeout_s)
        async with taken as slot:
            self._held = self._held.and_(slot)
            try:
                yield slot
            finally:
                self._held = self._held.without(slot)

    async def _declared_limit(self, phase: str) -> int | None:
        record = await self.record()
        if record is None:
            return None
        state = record.phases.get(phase)
        if state is None or state.ended_at is not None or record.is_ended:
            record = await self.enter(phase)
        declared = record.declared.get(phase)
        return declared.limit if declared is not None else None

    def _decisions(self) -> Decisions:
        return Decisions(self._connection, self.id, writer=self._writer)

    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(self._connection, self.id, writer=self._writer)

    async def _take(self, name: str, *, begun: int = 0) -> Checkpoint:
        await self._held.confirm()
        by = By(self._writer, datetime.now(UTC))
        return await self._checkpoints().take(name, by, branch=self.branch, begun=begun)

    async def _change(self, transition: Transition) -> WorkflowRecord:
        def checked(record: WorkflowRecord, by: By) -> WorkflowRecord:
            if self.branch is not None and self.branch < record.branch:
                raise left_behind(self.id, self.branch, record.branch)
            return transition(record, by)

        return await self._records.change(self.id, checked, fence=self._held)

    async def end(self, status: str = "success", *, error: str | None = None) -> WorkflowRecord:
        """The workflow ends, as success, error or cancelled; what ended before stays as it ended.

        Raises ValueError for another status.
        """
        return await self._change(lambda record, by: record.ended(status, by, error=error))


class Workflows:
    """The workflows that the messages of one replica belong to."""

    __slots__ = ("_agent", "_connection", "controls", "memory_limit")

    def __init__(self, connection: Connection, agent: str, controls: ControlWatch) -> None:
        self._connection = connection
        self._agent = agent
        self.controls = controls
        self.memory_limit = connection.settings.memory_limit

    def of(self, envelope: Envelope) -> WorkflowHandle:
        """The workflow of a message, in the message's branch, for who handles it."""
        writer = f"{self._agent}, handling {envelope.type} {envelope.message_id}"
        return WorkflowHandle(
            self._connection,
            envelope.workflow_id,
            branch=branch_of(envelope),
            writer=writer,
            check=partial(self.controls.check, envelope),
        )
