"""Dead letters: the stream of messages that could not be handled, with their bytes and their story."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator
from typing import NamedTuple

import orjson

from bus.broker.connection import Connection
from bus.broker.messages import get_message
from bus.broker.objects import Objects
from bus.broker.pull import Delivery
from bus.broker.reader import StreamReader
from bus.broker.store import Stored, store
from bus.broker.streams import StreamNames
from bus.broker.wire import header_block
from bus.delivery.letter import HEADERS_OBJECT, OBJECT, DeadLetter, kept_headers, story_of
from bus.envelope.grammar import is_agent_name
from bus.errors import ErrorInfo, kind

log = logging.getLogger("bus.delivery")

# Room for the story of a letter; a message's own headers may take as much, more is kept as an object, because the
# server takes 64 KiB of headers and no more.
HEADER_ROOM_BYTES = 16_384


class Burial(NamedTuple):
    """The id of a dead letter, and whether it was not there before."""

    id: int
    is_new: bool


class DeadLetters:
    """The dead-letter stream of a bus: bury, list, get."""

    def __init__(self, connection: Connection) -> None:
        names = StreamNames.of(connection.settings.namespace)
        self._connection = connection
        self._objects = Objects(connection, names.artifacts)
        self._stream = names.dead

    async def bury(self, delivery: Delivery, *, agent: str, failure: ErrorInfo, seconds: float | None = None) -> Burial:
        """Stores a copy with its reason; returns once the broker has it. Raises BrokerError.

        `seconds` is how long its handler ran, None when none did.
        Burying the same delivery again within two minutes stores nothing new. Bytes that leave no room for the
        headers under the broker's limit are kept as an object, and so are headers that are larger than usual.
        """
        headers = kept_headers(delivery.headers)
        if len(header_block(headers)) > HEADER_ROOM_BYTES:
            headers = {HEADERS_OBJECT: await self._keep(orjson.dumps(headers))}
        headers |= story_of(delivery, failure, seconds=seconds)
        headers["Nats-Msg-Id"] = f"dead:{agent}:{delivery.subject}:{delivery.stream_seq}"
        stored = await self._store(agent, failure.code, delivery.data, headers)
        if stored.duplicate:
            return Burial(stored.seq, is_new=False)
        log.warning(
            "dead letter %d: %s of %s: %s (attempt %s); bus dead show %d",
            stored.seq,
            failure.code,
            delivery.subject,
            failure.message,
            headers["Bus-Attempts"],
            stored.seq,
        )
        return Burial(stored.seq, is_new=True)

    async def list(
        self, *, agent: str | None = None, code: str | None = None, type: str | None = None
    ) -> AsyncIterator[DeadLetter]:
        """All dead letters, oldest first; `agent`, `code` (also an alias of the table) and `type` narrow it down.

        Raises BrokerError; ValueError for a code that is not in the error table or a name that is no agent's.
        """
        if agent is not None and not is_agent_name(agent):
            raise ValueError(f"{agent!r} is not an agent name: 1 to 64 letters, digits, _ and -")
        wanted = self._connection.subjects.dead(agent or "*", "*" if code is None else _table_code(code))
        async with StreamReader(self._connection, self._stream, subjects=[wanted], start_seq=1) as reader:
            async for delivery in reader.until_now():
                letter = await self.read(delivery)
                if type is None or letter.type == type:
                    yield letter

    async def get(self, id: int) -> DeadLetter | None:
        """One dead letter, or None. Raises BrokerError."""
        delivery = await get_message(self._connection, self._stream, id)
        if delivery is None or not self._connection.subjects.is_dead(delivery.subject):
            return None
        return await self.read(delivery)

    async def read(self, delivery: Delivery) -> DeadLetter:
        """A message of the dead-letter stream as a DeadLetter."""
        headers, data = dict(delivery.headers), delivery.data
        if HEADERS_OBJECT in headers:
            kept = await self._objects.get(headers[HEADERS_OBJECT])
            headers = (orjson.loads(kept) if kept else {}) | headers
        return DeadLetter.of(delivery, headers, await self._objects.get(headers[OBJECT]) if OBJECT in headers else data)

    async def _store(self, agent: str, code: str, data: bytes, headers: dict[str, str]) -> Stored:
        if len(data) + 2 * HEADER_ROOM_BYTES > self._connection.max_message_bytes:
            headers, data = {**headers, OBJECT: await self._keep(data)}, b""
        return await store(
            self._connection,
            self._connection.subjects.dead(agent, code),
            data,
            headers,
            timeout_s=self._connection.settings.publish_timeout_s,
        )

    async def _keep(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        await self._objects.put(name, data)
        return name


def _table_code(code: str) -> str:
    try:
        return kind(code).code
    except KeyError as problem:
        raise ValueError(problem.args[0]) from None
