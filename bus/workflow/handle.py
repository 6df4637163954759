"""What a handler or a client can do with the workflow that it works for: its record, its documents."""

from __future__ import annotations

from bus.broker.connection import Connection
from bus.envelope import Envelope
from bus.errors import error
from bus.workflow.branches import branch_of
from bus.workflow.control import ControlWatch
from bus.workflow.fence import NO_FENCE, Fence
from bus.workflow.record import WorkflowRecord
from bus.workflow.record_store import RecordStore
from bus.workflow.state import WorkflowState


class WorkflowHandle:
    """One workflow in one branch, as `message.workflow` and `Bus.workflow` give it. Every method raises BrokerError."""

    __slots__ = ("_connection", "_fence", "_id", "_records", "_writer", "branch")

    def __init__(self, connection: Connection, workflow_id: str | None, *, branch: int | None, writer: str) -> None:
        self._connection = connection
        self._id = workflow_id
        self._writer = writer
        self._records = RecordStore(connection, writer=writer)
        self._fence: Fence = NO_FENCE
        self.branch = branch

    @property
    def id(self) -> str:
        """Its id. Raises Rejected `protocol.malformed` for a message outside of any workflow."""
        if self._id is None:
            raise error("protocol.malformed", "this message belongs to no workflow", path="workflow_id")
        return self._id

    @property
    def state(self) -> WorkflowState:
        """The documents that all agents of the workflow share."""
        return self.documents()

    def documents(self, below: str = "") -> WorkflowState:
        """The documents of one family of the bus itself; without one, those of users."""
        return WorkflowState(
            self._connection, self._id, below=below, branch=self.branch, writer=self._writer, fence=self._fence
        )

    async def record(self) -> WorkflowRecord | None:
        """How the workflow stands; None for one that was not begun by `Bus.workflow`."""
        return await self._records.read(self.id)

    async def enter(self, phase: str) -> WorkflowRecord:
        """A phase begins; does nothing when it runs already.

        Raises ToolError `tool.execution_failed`, retryable, while the phase before it in the declared order has not
        ended, and `tool.cancelled` when the workflow has ended.
        """
        await self._fence.confirm()
        return await self._records.change(self.id, lambda record, by: record.entered(phase, by))

    async def leave(self, phase: str) -> WorkflowRecord:
        """A phase ends; does nothing when it has ended. Raises ToolError as `enter`, and for one that never began."""
        await self._fence.confirm()
        return await self._records.change(self.id, lambda record, by: record.left(phase, by))

    async def end(self, status: str = "success", *, error: str | None = None) -> WorkflowRecord:
        """The workflow ends, as success, error or cancelled; what ended before stays as it ended.

        Raises ValueError for another status.
        """
        return await self._records.change(self.id, lambda record, by: record.ended(status, by, error=error))


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
        return WorkflowHandle(self._connection, envelope.workflow_id, branch=branch_of(envelope), writer=writer)
