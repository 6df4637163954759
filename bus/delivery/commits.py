"""Group commit: what ends at the same time is recorded in one message, then settled in one write.

A delivery is acknowledged only after its completion is stored: if the acknowledgement is lost, or the process
ends before it, the message comes again and its completion is known. An attempt that failed is recorded in the same
way and given back, so that its error can be read while the message waits for the next attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from bus.broker.connection import Connection
from bus.broker.store import store_block
from bus.broker.tasks import end
from bus.broker.wire import ack_commands, publish_command
from bus.errors import BusError, error
from bus.workflow import completions
from bus.workflow.completions import Completion, FailedAttempt

log = logging.getLogger("bus.delivery")

MAX_GROUP = 256
RETRY_S = 0.5


class Commit(Protocol):
    """One delivery to record and settle."""

    @property
    def record(self) -> Completion | FailedAttempt:
        """What is recorded."""

    @property
    def reply(self) -> str:
        """Where it is settled."""

    def ended(self, problem: BusError | None) -> None:
        """Hears that it is done, or why it could not be. It must neither block nor raise."""


class _GivenBack:
    """A failed attempt that its pipeline waits for."""

    __slots__ = ("done", "record", "reply")

    def __init__(self, record: FailedAttempt, reply: str) -> None:
        self.record = record
        self.reply = reply
        self.done: asyncio.Future[BusError | None] = asyncio.get_running_loop().create_future()

    def ended(self, problem: BusError | None) -> None:
        if not self.done.done():
            self.done.set_result(problem)


class Commits:
    """The commits of one replica. `on_stored` hears the sequence of every message that was stored."""

    def __init__(self, connection: Connection, agent: str, *, on_stored: Callable[[int], None]) -> None:
        self._connection = connection
        self._subject = connection.subjects.done(agent)
        self._on_stored = on_stored
        self._waiting: list[Commit] = []
        self._arrived = asyncio.Event()
        self._task = connection.tasks.start(self._run(), name=f"commit what {agent} completed")

    def add(self, commit: Commit) -> None:
        """Takes a commit."""
        if not self._waiting:
            self._arrived.set()
        self._waiting.append(commit)

    async def give_back(self, failed: FailedAttempt, reply: str) -> None:
        """Records a failed attempt and gives its delivery back. Raises BrokerError when it could not be."""
        given_back = _GivenBack(failed, reply)
        self.add(given_back)
        if (problem := await given_back.done) is not None:
            raise problem

    async def stop(self) -> None:
        """Stops. What still waits fails with `broker.unavailable` and comes again."""
        await end(self._task)
        left, self._waiting = self._waiting, []
        for commit in left:
            commit.ended(error("broker.unavailable", "stopped before the completion was stored"))

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            group, self._waiting = self._waiting[:MAX_GROUP], self._waiting[MAX_GROUP:]
            if not self._waiting:
                self._arrived.clear()
            problem: BusError | None = error("broker.unavailable", "stopped before the completion was stored")
            try:
                while (problem := await self._commit(group)) is not None:
                    log.warning("what was completed is not stored yet: %s", problem.info.message)
                    await asyncio.sleep(RETRY_S)
            finally:
                for commit in group:
                    commit.ended(problem)

    async def _commit(self, group: list[Commit]) -> BusError | None:
        # A group that cannot be stored is kept and tried again; its messages are kept alive meanwhile.
        records = [one.record for one in group]
        body = completions.encode(
            [one for one in records if isinstance(one, Completion)],
            [one for one in records if isinstance(one, FailedAttempt)],
        )
        timeout_s = self._connection.settings.publish_timeout_s
        try:
            stored = await store_block(self._connection, self._subject, body, b"", timeout_s=timeout_s)
            self._on_stored(stored.seq)
            await self._connection.send(_settlements(group))
        except BusError as problem:
            return problem
        return None


def _settlements(group: list[Commit]) -> bytes:
    """What the server hears, as it stands on the wire."""
    replies = [one.reply for one in group if isinstance(one.record, Completion)]
    return ack_commands(replies) + b"".join(
        [
            publish_command(one.reply, "", b"", b'-NAK {"delay": %d}' % int(one.record.again_in_ms * 1e6))
            for one in group
            if isinstance(one.record, FailedAttempt)
        ]
    )
