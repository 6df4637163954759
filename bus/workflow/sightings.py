"""Sightings: what passes on the bus, from the streams that keep it, for `bus tail` and for waiting clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from datetime import datetime

from bus.broker.connection import Connection
from bus.broker.pull import Delivery
from bus.broker.reader import StreamReader
from bus.broker.streams import StreamNames
from bus.broker.tasks import end
from bus.envelope import Envelope
from bus.errors import BusError, Rejected

QUEUE = 256


@dataclass(frozen=True, slots=True)
class Sighting:
    """One message seen. `kind` is work, event, stream or dead; `envelope` is None when its bytes cannot be read."""

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

    @property
    def published_as(self) -> str | None:
        """The sender that the subject names, where the envelope names another: a forger's, or a mistake."""
        if self.envelope is None:
            return None
        tokens = (self.headers.get("Bus-Origin-Subject", "") if self.kind == "dead" else self.subject).split(".")
        place = 3 if tokens[2:3] in (["event"], ["stream"]) else 5
        name = tokens[place] if len(tokens) > place else self.envelope.sender
        return name if name != self.envelope.sender else None

    def matches(self, *, workflow_id: str | None, agent: str | None, type: str | None) -> bool:
        """Whether it passes the filters; what has no readable envelope is matched by its subject's tokens."""
        if self.envelope is None:
            tokens = self.subject.split(".")[2:]
            return workflow_id is None and all(want is None or want in tokens for want in (agent, type))
        return (
            (workflow_id is None or self.envelope.workflow_id == workflow_id)
            and (agent is None or agent in (self.envelope.sender, self.envelope.to, self.published_as))
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
) -> AsyncGenerator[Sighting, None]:
    """See `Bus.watch`. Raises BrokerError when the streams cannot be read at the start."""
    names = StreamNames.of(connection.settings.namespace)
    arrived = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        sources = []
        subjects = connection.subjects
        for kind, stream, subject in (
            ("work", names.history, subjects.history_all),
            ("event", names.events, subjects.event_all),
            ("stream", names.streams, subjects.stream_all),
            ("dead", names.dead, subjects.dead_all),
        ):
            reader = await stack.enter_async_context(
                StreamReader(connection, stream, subjects=[subject], start_time=since)
            )
            sources.append(_Source(kind, reader, arrived))
        tasks = [asyncio.create_task(source.read(follow), name=f"watch {source.kind}") for source in sources]
        stack.push_async_callback(end, *tasks)
        while True:
            arrived.clear()
            if (seen := _earliest(sources)) is not None:
                if seen.matches(workflow_id=workflow_id, agent=agent, type=type):
                    yield seen
            elif all(source.is_ended for source in sources):
                return
            else:
                await arrived.wait()


class _Source:
    """One stream that is being read. What is stored is merged by time; what is live comes as it arrives."""

    def __init__(self, kind: str, reader: StreamReader, arrived: asyncio.Event) -> None:
        self.kind = kind
        self.waiting: asyncio.Queue[Sighting] = asyncio.Queue(QUEUE)
        self.head: Sighting | None = None
        self.is_live = reader.is_caught_up
        self.is_ended = False
        self.problem: BusError | None = None
        self._reader = reader
        self._arrived = arrived

    async def read(self, follow: bool) -> None:
        try:
            async for delivery in self._reader if follow else self._reader.until_now():
                await self.waiting.put(Sighting.of(self.kind, delivery))
                self.is_live = self.is_live or delivery.pending == 0
                self._arrived.set()
        except BusError as problem:
            self.problem = problem
        finally:
            self.is_live = self.is_ended = True
            self._arrived.set()


def _earliest(sources: list[_Source]) -> Sighting | None:
    """Takes the sighting that is next in time, or None while that cannot be told."""
    for source in sources:
        if source.problem is not None:
            raise source.problem
        if source.head is None and not source.waiting.empty():
            source.head = source.waiting.get_nowait()
    if any(source.head is None and not source.is_live for source in sources):
        return None
    first = min(
        (source for source in sources if source.head is not None),
        key=lambda source: source.head.stored_at if source.head else datetime.max,
        default=None,
    )
    if first is None:
        return None
    seen, first.head = first.head, None
    return seen
