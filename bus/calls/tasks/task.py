"""The task as who asked for it sees it: its state, its result, its end. Any process may hold it, by its id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from bus.broker.connection import Connection
from bus.calls.asked import RESULT_TYPE
from bus.calls.tasks.record import TaskRecord
from bus.calls.tasks.store import TaskStore
from bus.calls.tasks.submission import cancel
from bus.contracts.result import Result
from bus.envelope import Envelope
from bus.errors import error
from bus.workflow.artifacts import Artifacts
from bus.workflow.references import DATA_REF, restore


class Task:
    """One task, made by `submit`, or by `Bus.task` from its id. Every method raises NoSuchTask, which is a ToolError,
    when there is none, and BrokerError.
    """

    __slots__ = ("_artifacts", "_name", "_store", "id")

    def __init__(self, connection: Connection, name: str, task_id: str) -> None:
        self.id = task_id
        self._name = name
        self._store = TaskStore(connection)
        self._artifacts = Artifacts(connection)

    async def status(self) -> TaskRecord:
        """Its record now: `state`, `attempts`, `deadline_at` and the rest."""
        return await self._store.read(self.id)

    def follow(self) -> AsyncGenerator[TaskRecord, None]:
        """Its record now and each time it changes, until its end."""
        return self._store.follow(self.id)

    async def outcome(self, *, timeout_s: float | None = None) -> Result:
        """Waits for its end and returns the result, also a failed or cancelled one.

        Raises ToolError `tool.timeout` when it has not ended within `timeout_s` (default: it ends at its deadline);
        the task goes on then.
        """
        try:
            async with asyncio.timeout(timeout_s):
                record = await self._store.ended(self.id)
        except TimeoutError:
            raise error(
                "tool.timeout", f"the task {self.id} has not ended within {timeout_s:g} s; it goes on, ask again"
            ) from None
        return await self._result(record)

    async def result(self, *, timeout_s: float | None = None) -> Result:
        """As `outcome`, but raises the error of a failed or cancelled task, as `Bus.call` does."""
        result = await self.outcome(timeout_s=timeout_s)
        result.unwrap()
        return result

    async def cancel(self) -> TaskRecord:
        """Cancels it, and what was submitted in its course; returns its record, which is terminal.

        One that had ended stays as it was: look at the record's `state`. A second call gives the same answer.
        """
        return await cancel(self._store, self.id, by=self._name)

    async def _result(self, record: TaskRecord) -> Result:
        if record.data_ref is None:
            return Result.from_payload(record.outcome)
        letter = Envelope(
            sender=record.agent, to=record.sender, type=RESULT_TYPE, extensions={DATA_REF: record.data_ref}
        )
        return Result.from_payload((await restore(letter, self._artifacts)).payload)
