"""Presence: everything by which others see one running replica, and by which it sees what is published."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from bus.broker.connection import Connection
from bus.broker.questions import Answering
from bus.broker.tasks import end
from bus.contracts.accepts import Accepts
from bus.errors import BusError
from bus.registry.answers import Answers, Models
from bus.registry.lease import Lease
from bus.registry.published import Published, PublishedContracts
from bus.telemetry.instruments import Kind, Labels, Metric

log = logging.getLogger("bus.registry")

RETRY_S = 5.0


class Presence:
    """The lease of a replica, its answers about what it reads, and its watch over published contracts."""

    def __init__(self, connection: Connection, agent: str, accepts: Accepts, models: Models) -> None:
        self._agent = agent
        self._accepts = accepts
        self._published = PublishedContracts(connection)
        self._lease = Lease(connection, agent, accepts)
        answers = Answers(agent, self.replica, accepts, models, max_bytes=connection.max_message_bytes)
        self._answers = Answering(connection, {connection.subjects.contracts(agent): answers.to}, name=agent)
        self._watch: asyncio.Task[None] | None = None

    @property
    def replica(self) -> str:
        """The id of the replica."""
        return self._lease.replica

    def read(self) -> Iterator[Metric]:
        """The age of its lease as a gauge, from any thread."""
        labels: Labels = (("bus.agent", self._agent),)
        yield Metric(
            "bus.lease.age", Kind.GAUGE, "s", "Since this replica last renewed its lease", {labels: self._lease.age_s}
        )

    async def start(self) -> None:
        """Makes the replica known. Works without the buckets. Raises BrokerError when it cannot even subscribe."""
        await self._answers.start()
        await self._lease.take()
        if self._accepts.versions:
            self._watch = asyncio.create_task(self._follow(), name=f"published contracts for {self._agent}")

    async def stop(self) -> None:
        """Takes it back at once; bounded; a second call does nothing."""
        await self._lease.release()
        await end(self._watch)
        await self._answers.stop()

    async def _follow(self) -> None:
        while True:
            try:
                async for published in self._published.follow():
                    self._look_at(published)
            except BusError as problem:
                log.debug("the published contracts cannot be read, trying again: %s", problem.info.message)
            await asyncio.sleep(RETRY_S)

    def _look_at(self, published: Published) -> None:
        version, majors = published.version, self._accepts.majors.get(published.version.type)
        # It reads what it carries itself; all that it makes of news is to say that it will be left behind.
        if majors and version.major > max(majors):
            log.warning(
                "%s is published, and this replica of %s accepts majors %s; upgrade it before senders write %s",
                version,
                self._agent,
                ", ".join(map(str, sorted(majors))),
                version,
            )
