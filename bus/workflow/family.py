"""The family of a workflow's messages: who was caused by whom, as far as this process has seen.

A message names the one that caused it, so whether it stands below another one is found by walking up. What is missing
on the way is read from the history, each part of it once, and only for workflows of which a part was decided about.
"""

from __future__ import annotations

import asyncio
from datetime import datetime

import orjson

from bus.broker.connection import Connection
from bus.broker.reader import StreamReader
from bus.broker.streams import StreamNames
from bus.envelope import Envelope
from bus.errors import Rejected
from bus.workflow.recorded import begin

# The server copies what it accepts into the history a moment later.
LAG_S = (0.0, 0.05, 0.15, 0.3)
# Of a circle, which only strangers write, the walk ends somewhere.
MAX_STEPS = 10_000


class Family:
    """What caused the messages of one workflow, by their ids. The first to name a cause for an id is believed."""

    __slots__ = ("_causes",)

    def __init__(self) -> None:
        self._causes: dict[str, str | None] = {}

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._causes

    @property
    def ids(self) -> list[str]:
        """All messages that are known."""
        return list(self._causes)

    def note(self, message_id: str, cause: str | None) -> None:
        """A message, and what caused it; None: nothing did, or nobody knows any more."""
        self._causes.setdefault(message_id, None if cause == message_id else cause)

    def is_below(self, envelope: Envelope, ancestor: str) -> bool:
        """Whether a message is `ancestor`, or was caused by it over however many others, as far as is known."""
        return self._walk(envelope, ancestor) is True

    def missing(self, envelope: Envelope, ancestors: frozenset[str]) -> str | None:
        """The id at which the walk up from a message ends without having come to a root or to one of `ancestors`."""
        current: str | None = envelope.causation_id
        if envelope.message_id in ancestors:
            return None
        for _ in range(MAX_STEPS):
            if current is None or current in ancestors:
                return None
            if current not in self._causes:
                return current
            current = self._causes[current]
        return None

    def _walk(self, envelope: Envelope, ancestor: str) -> bool:
        current: str | None = envelope.message_id
        following: str | None = envelope.causation_id
        for _ in range(MAX_STEPS):
            if current == ancestor:
                return True
            if following is None:
                return False
            current, following = following, self._causes.get(following)
        return False


class FamilyReader:
    """Fills the family of one workflow from the history and the broadcasts, on from where it was."""

    def __init__(self, connection: Connection, workflow_id: str, family: Family) -> None:
        names, subjects = StreamNames.of(connection.settings.namespace), connection.subjects
        self._connection = connection
        self._workflow_id = workflow_id
        self._family = family
        self._needle = orjson.dumps(workflow_id)[1:-1]
        self._next = {
            (names.history, subjects.history_all): 0,
            (names.events, subjects.event("*", workflow_id, "*")): 0,
        }
        self._one = asyncio.Lock()
        self._reads = 0

    async def read(self) -> None:
        """Reads what has come since the last time. Who calls meanwhile shares a later read. Raises BrokerError."""
        before = self._reads
        async with self._one:
            # Another one that began after this call has read everything that this one would.
            if self._reads < before + 2:
                self._reads += 1
                for (stream, subject), seq in list(self._next.items()):
                    self._next[stream, subject] = await self._read(stream, subject, seq)

    async def understand(self, envelope: Envelope, ancestors: frozenset[str]) -> None:
        """Makes sure that it can be said whether a message stands below one of `ancestors`. Raises BrokerError."""
        self._family.note(envelope.message_id, envelope.causation_id)
        for pause_s in LAG_S:
            missing = self._family.missing(envelope, ancestors)
            if missing is None:
                return
            await asyncio.sleep(pause_s)
            await self.read()
        if (missing := self._family.missing(envelope, ancestors)) is not None:
            # Of a client's call, of another workflow, or forgotten: it stands below nothing that is known.
            self._family.note(missing, None)

    async def _read(self, stream: str, subject: str, seq: int) -> int:
        start: datetime | None = None if seq else begin(self._workflow_id)
        async with StreamReader(
            self._connection, stream, subjects=[subject], start_seq=seq or None, start_time=start
        ) as reader:
            async for delivery in reader.until_now():
                seq = delivery.stream_seq + 1
                if self._needle not in delivery.data and b"\\u" not in delivery.data:
                    continue
                try:
                    envelope = Envelope.decode(delivery.data)
                except Rejected:
                    continue
                if envelope.workflow_id == self._workflow_id:
                    self._family.note(envelope.message_id, envelope.causation_id)
        return seq
