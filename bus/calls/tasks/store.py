"""The store of tasks: records in the bucket `bus_tasks`, changed by compare-and-set, followed without asking often."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import NamedTuple

from bus.broker.connection import Connection
from bus.broker.parser import Arrival
from bus.broker.records import Records
from bus.broker.streams import StreamNames, subjects_with_messages
from bus.broker.subjects import token
from bus.calls.tasks.record import TaskRecord
from bus.errors import BrokerError, ToolError

# Words about changes may be lost with the link or their sender; then this is how late one is noticed.
LOOK_AGAIN_S = 2.0
ON_TIME_S = 0.01
MAX_ID_CHARS = 128

Step = Callable[[TaskRecord], TaskRecord | None]


class NoSuchTask(ToolError):
    """No task has this id: it never was, or is forgotten."""

    def __init__(self, task_id: str) -> None:
        super().__init__(
            "tool.execution_failed",
            f"there is no task {task_id[:128]!r}: it never was, or is forgotten; `bus task ls` shows what there is",
            retryable=False,
            task_id=task_id[:128],
        )


class Change(NamedTuple):
    """A record as it is now; `is_ours`: this step made it so, else the step was not allowed any more."""

    record: TaskRecord
    is_ours: bool


class TaskStore:
    """The tasks of one bus. Everything waits while the broker is away, up to `publish_timeout_s`, then raises
    BrokerError; after that a change may or may not have happened.
    """

    __slots__ = ("_connection", "_records", "_window_s")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._records = Records(connection, StreamNames.of(connection.settings.namespace).tasks, writer="")
        self._window_s = connection.settings.idempotency_window_s

    async def read(self, task_id: str) -> TaskRecord:
        """The record as it is now. Raises NoSuchTask. One whose deadline has passed is ended first."""
        record, _ = await self._connection.patiently(lambda: self._read(task_id))
        if record.is_terminal or record.expired(now()) is None:
            return record
        return (await self.change(task_id, lambda one: one.expired(now()))).record

    async def create(self, record: TaskRecord) -> Change:
        """Writes a new record; where there is one already, that one stays and is returned."""

        async def attempt() -> Change:
            if await self._write(record, after=0):
                return Change(record, True)
            found, _ = await self._read(record.id)
            # Equal, because our own write was stored and its answer lost.
            return Change(found, found == record)

        return await self._connection.patiently(attempt)

    async def change(self, task_id: str, step: Step) -> Change:
        """Takes one step of the state machine, again as long as others are faster. Raises NoSuchTask."""
        wanted: TaskRecord | None = None

        async def attempt() -> Change:
            nonlocal wanted
            while True:
                found, revision = await self._read(task_id)
                if wanted is not None and found == wanted:
                    return Change(found, True)  # stored before, and its answer lost
                wanted = step(found)
                if wanted is None:
                    return Change(found, False)
                if await self._write(wanted, after=revision):
                    return Change(wanted, True)

        return await self._connection.patiently(attempt)

    async def follow(self, task_id: str) -> AsyncGenerator[TaskRecord, None]:
        """The record now, and then each time that it is found changed; ends after a terminal one. Raises NoSuchTask."""
        changed = asyncio.Event()

        def hear(_: Arrival) -> None:
            changed.set()

        subscription = await self._connection.subscribe(self._connection.subjects.task(task_id), hear)
        try:
            last = None
            while True:
                changed.clear()
                wait_s = LOOK_AGAIN_S
                try:
                    record = await self.read(task_id)
                except BrokerError as problem:
                    if not problem.info.retryable:
                        raise
                else:
                    if record != last:
                        last = record
                        yield record
                    if record.is_terminal:
                        return
                    wait_s = min(wait_s, (record.deadline_at - now()).total_seconds() + ON_TIME_S)
                try:
                    async with asyncio.timeout(wait_s):
                        await changed.wait()
                except TimeoutError:
                    pass
        finally:
            await subscription.drain()

    async def ended(self, task_id: str) -> TaskRecord:
        """Waits for the terminal record, without a limit. Raises NoSuchTask."""
        async with aclosing(self.follow(task_id)) as records:
            async for record in records:
                if record.is_terminal:
                    return record
        raise NoSuchTask(task_id)

    async def adopt(self, parent: str, child: TaskRecord) -> None:
        """Notes that `child` was asked for in the course of the task `parent`, so that a cancel reaches it."""
        ttl_s = child.lives_for_s(now(), self._window_s)
        key = f"child.{token(parent)}.{token(child.id)}"
        await self._connection.patiently(lambda: self._records.write(key, b"", ttl_s=ttl_s, after=None))

    async def children(self, parent: str) -> list[str]:
        """The ids of the tasks that were asked for in the course of this one."""
        pattern = self._records.subject(f"child.{token(parent)}.*")
        found = await self._connection.patiently(
            lambda: subjects_with_messages(self._connection, self._records.stream, pattern)
        )
        return [subject.rpartition(".")[2] for subject in found]

    async def all(self) -> list[TaskRecord]:
        """Every task that is known, the oldest first. What cannot be read as one is passed over."""
        found: dict[str, TaskRecord] = {}
        async for _, entry in self._records.entries("task.*"):
            record = _decoded(entry.value)
            if record is not None:
                found[record.id] = record.expired(now()) or record
        return sorted(found.values(), key=lambda one: (one.submitted_at, one.id))

    async def _read(self, task_id: str) -> tuple[TaskRecord, int]:
        if len(task_id) > MAX_ID_CHARS:
            raise NoSuchTask(task_id)
        entry = await self._records.read_once(f"task.{token(task_id)}")
        record = _decoded(entry.value)
        if record is None:
            raise NoSuchTask(task_id)
        return record, entry.revision

    async def _write(self, record: TaskRecord, *, after: int) -> bool:
        ttl_s = record.lives_for_s(now(), self._window_s)
        revision = await self._records.write(f"task.{token(record.id)}", record.encode(), ttl_s=ttl_s, after=after)
        if revision is None:
            return False
        await self._tell(record.id)
        return True

    async def _tell(self, task_id: str) -> None:
        """Says that the record has changed; who does not hear it looks again after a while."""
        try:
            await self._connection.publish(self._connection.subjects.task(task_id), b"")
        except BrokerError:
            return


def now() -> datetime:
    """This moment."""
    return datetime.now(UTC)


def _decoded(value: bytes | None) -> TaskRecord | None:
    try:
        return None if value is None else TaskRecord.decode(value)
    except ValueError:
        return None
