"""Sightings: what passes on the bus, from the streams that keep it, for `bus tail` and for waiting clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from bus.broker.connection import Connection
from bus.broker.pull import Delivery
from bus.broker.reader import StreamReader
from bus.broker.streams import StreamNames
from bus.envelope import Envelope
from bus.errors import BusError, Rejected

QUEUE = 1024


@dataclass(frozen=True, slots=True)
class Sighting:
    """One message seen. `kind` is work, event or dead; `envelope` is None when its bytes cannot be read."""

    kind: str
    subject: str
    seq: int
    stored_at: datetime
    headers: Mapping[str, str]
    data: bytes
    envelope: Envelope | None

    @classmethod
    def of(cls, kind: str, delivery: Delivery) -> Sighting:
        """Reads a delivery of one of the streams."""
        envelope = None
        with contextlib.suppress(Rejected):
            envelope = Envelope.decode(delivery.data)
        return cls(
            kind,
            delivery.subject,
            delivery.stream_seq,
            delivery.stored_at,
            delivery.headers,
            delivery.data,
            envelope,
        )

    def matches(self, *, workflow_id: str | None, agent: str | None, type: str | None) -> bool:
        """Whether it passes the filters; what has no readable envelope is matched by its subject's tokens."""
        if self.envelope is None:
            tokens = self.subject.split(".")[2:]
            return workflow_id is None and all(want is None or want in tokens for want in (agent, type))
        return (
            (workflow_id is None or self.envelope.workflow_id == workflow_id)
            and (agent is None or agent in (self.envelope.sender, self.envelope.to))
            and (type is None or self.envelope.type == type)
        )


async def sightings(
    connection: Connection,
    *,
    workflow_id: str | None,
    agent: str | None,
    type: str | None,
    since: datetime | None,
    follow: bool,
) -> AsyncIterator[Sighting]:
    """See `Bus.watch`. Raises BrokerError when the streams cannot be read at the start."""
    names = StreamNames.of(connection.settings.namespace)
    sources = (("work", names.history), ("event", names.events), ("dead", names.dead))
    queue: asyncio.Queue[Sighting | BusError | None] = asyncio.Queue(QUEUE)

    async def read(kind: str, reader: StreamReader) -> None:
        try:
            async for delivery in reader if follow else reader.until_now():
                await queue.put(Sighting.of(kind, delivery))
            await queue.put(None)
        except BusError as problem:
            await queue.put(problem)

    async with contextlib.AsyncExitStack() as stack:
        readers = [
            (kind, await stack.enter_async_context(StreamReader(connection, stream, start_time=since)))
            for kind, stream in sources
        ]
        tasks = [asyncio.create_task(read(kind, reader), name=f"watch {kind}") for kind, reader in readers]
        stack.push_async_callback(_end, tasks)
        ended = 0
        while ended < len(tasks):
            arrived = await queue.get()
            if isinstance(arrived, BusError):
                raise arrived
            if arrived is None:
                ended += 1
            elif arrived.matches(workflow_id=workflow_id, agent=agent, type=type):
                yield arrived


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
