"""Group commit: what ends at the same time is recorded in one message, then settled in one write.

A delivery is acknowledged only after its completion is stored: if the acknowledgement is lost, or the process
ends before it, the message comes again and its completion is known. An attempt that failed is recorded in the same
way and given back, so that its error can be read while the message waits for the next attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from bus.broker.connection import Connection
from bus.broker.store import store
from bus.broker.tasks import end
from bus.broker.wire import publish_command
from bus.errors import BusError, error
from bus.workflow import completions
from bus.workflow.completions import Completion, FailedAttempt

log = logging.getLogger("bus.delivery")

MAX_GROUP = 256
RETRY_S = 0.5

Committed = Callable[[BusError | None], None]


class Commit(NamedTuple):
    """One delivery to record and settle. `then` is called once that is done, or with the error when it could not be."""

    record: Completion | FailedAttempt
    reply: str
    then: Committed

    @property
    def settlement(self) -> bytes:
        """What the server hears."""
        if isinstance(self.record, Completion):
            return b"+ACK"
        return b'-NAK {"delay": %d}' % int(self.record.again_in_ms * 1e6)


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
        """Takes a commit; `then` must neither block nor raise."""
        self._waiting.append(commit)
        self._arrived.set()

    async def give_back(self, failed: FailedAttempt, reply: str) -> None:
        """Records a failed attempt and gives its delivery back. Raises BrokerError when it could not be."""
        done: asyncio.Future[BusError | None] = asyncio.get_running_loop().create_future()

        def then(problem: BusError | None) -> None:
            if not done.done():
                done.set_result(problem)

        self.add(Commit(failed, reply, then))
        if (problem := await done) is not None:
            raise problem

    async def stop(self) -> None:
        """Stops. What still waits fails with `broker.unavailable` and comes again."""
        await end(self._task)
        left, self._waiting = self._waiting, []
        for commit in left:
            commit.then(error("broker.unavailable", "stopped before the completion was stored"))

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
                    commit.then(problem)

    async def _commit(self, group: list[Commit]) -> BusError | None:
        # A group that cannot be stored is kept and tried again; its messages are kept alive meanwhile.
        try:
            stored = await store(
                self._connection,
                self._subject,
                completions.encode(
                    [one.record for one in group if isinstance(one.record, Completion)],
                    [one.record for one in group if isinstance(one.record, FailedAttempt)],
                ),
                {},
                timeout_s=self._connection.settings.publish_timeout_s,
            )
            self._on_stored(stored.seq)
            await self._connection.send(
                b"".join([publish_command(one.reply, "", b"", one.settlement) for one in group])
            )
        except BusError as problem:
            return problem
        return None
