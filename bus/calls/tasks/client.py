"""The client of tasks: the part of `Bus` that submits them and finds them again."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from bus.broker.connection import Connection
from bus.calls.caller import Caller
from bus.calls.tasks.record import TaskRecord
from bus.calls.tasks.store import TaskStore
from bus.calls.tasks.task import Task


class TaskClient:
    """What a `Bus` can do with tasks."""

    name: str
    connection: Connection
    _caller: Caller

    async def submit(
        self, capability: str, arguments: BaseModel | dict[str, Any] | None = None, **options: Any
    ) -> Task:
        """Has a capability done as a task: stored, done by whichever replica lives, and looked at when you like.

        Options as `call` has them: `agent` (it need not be there yet), `version`, `idempotency_key` (the same key
        is the same task), `validate`, `max_result_bytes`, `workflow_id`, `session_id`, and `timeout_s`: what it has in
        all, the wait for its turn included (default: the setting `task_timeout_s`). One run is bounded by the card. It
        runs again after a crash, and after a retryable error as often as the agent's policy allows. Raises
        RegistryError when nobody offers it, `tool.validation_failed` for a key that had other arguments, BrokerError.
        """
        return await self._caller.submit(capability, arguments, **options)

    def task(self, task_id: str) -> Task:
        """A task that was submitted before, here or elsewhere."""
        return Task(self.connection, self.name, task_id)

    async def tasks(self) -> list[TaskRecord]:
        """All tasks that are known, the oldest first: those under way, and those that ended within a day."""
        return await TaskStore(self.connection).all()
