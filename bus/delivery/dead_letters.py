"""Dead letters: messages that could not be handled, with their bytes, the reason and where they came from."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bus.broker.connection import Connection
from bus.broker.objects import Objects
from bus.broker.pull import Delivery
from bus.broker.reader import StreamReader
from bus.broker.store import store
from bus.broker.streams import StreamNames
from bus.envelope import Envelope
from bus.errors import ErrorInfo, Rejected

log = logging.getLogger("bus.delivery")

MAX_REASON_CHARS = 500
MAX_DETAILS_CHARS = 8000
HEADER_ROOM_BYTES = 16_384

# The broker acts on these, so a copy must not carry them under their own name.
_BROKER_HEADER = "Nats-"
_KEPT_AS = "Bus-Origin-Header-"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter. `id` is its sequence in the stream; `data` the bytes exactly as they arrived."""

    id: int
    agent: str
    code: str
    reason: str
    attempts: int
    failed_at: datetime
    origin_subject: str
    origin_seq: int
    details: dict[str, Any]
    headers: dict[str, str]
    data: bytes

    def envelope(self) -> Envelope | None:
        """The envelope, when the bytes are one that this version can read."""
        try:
            return Envelope.decode(self.data)
        except Rejected:
            return None


class DeadLetters:
    """The dead-letter stream of a bus."""

    __slots__ = ("_connection", "_objects", "_stream")

    def __init__(self, connection: Connection) -> None:
        names = StreamNames.of(connection.settings.namespace)
        self._connection = connection
        self._objects = Objects(connection, names.artifacts)
        self._stream = names.dead

    async def bury(self, delivery: Delivery, *, agent: str, failure: ErrorInfo) -> int:
        """Stores a copy with its reason and returns its id once the broker has it. Raises BrokerError.

        Burying the same delivery again within two minutes stores nothing new. Bytes that leave no room for the
        headers under the broker's limit are kept as an object.
        """
        headers = _carried(delivery.headers)
        headers |= {
            "Bus-Dead-Code": failure.code,
            "Bus-Dead-Reason": _one_line(failure.message, MAX_REASON_CHARS),
            "Bus-Dead-Details": _details(failure),
            "Bus-Attempts": str(delivery.attempt),
            "Bus-Origin-Subject": delivery.subject,
            "Bus-Origin-Seq": str(delivery.stream_seq),
            "Bus-Failed-At": datetime.now(UTC).isoformat(),
            "Nats-Msg-Id": f"dead:{agent}:{delivery.subject}:{delivery.stream_seq}",
        }
        body = delivery.data
        if len(body) + HEADER_ROOM_BYTES > self._connection.max_message_bytes:
            name = hashlib.sha256(body).hexdigest()
            await self._objects.put(name, body)
            headers["Bus-Dead-Object"], body = name, b""
        stored = await store(
            self._connection,
            self._connection.subjects.dead(agent, failure.code),
            body,
            headers,
            timeout_s=self._connection.settings.publish_timeout_s,
        )
        log.warning(
            "dead letter %d: %s of %s: %s (attempt %d); bus dead show %d",
            stored.seq,
            failure.code,
            delivery.subject,
            failure.message,
            delivery.attempt,
            stored.seq,
        )
        return stored.seq

    async def list(self, *, agent: str | None = None, code: str | None = None) -> AsyncIterator[DeadLetter]:
        """All dead letters, oldest first; `agent` and `code` narrow it down. Raises BrokerError."""
        subjects = self._connection.subjects
        wanted = subjects.dead(agent or "*", code or "*")
        async with StreamReader(self._connection, self._stream, subjects=[wanted], start_seq=1) as reader:
            async for delivery in reader.until_now():
                yield await self.read(delivery)

    async def get(self, id: int) -> DeadLetter | None:
        """One dead letter, or None. Raises BrokerError."""
        async with StreamReader(self._connection, self._stream, start_seq=id) as reader:
            async for delivery in reader.until_now():
                return await self.read(delivery) if delivery.stream_seq == id else None
        return None

    async def read(self, delivery: Delivery) -> DeadLetter:
        """A message of the dead-letter stream as a DeadLetter."""
        headers = dict(delivery.headers)
        data = delivery.data
        if "Bus-Dead-Object" in headers:
            data = await self._objects.get(headers["Bus-Dead-Object"]) or b""
        tokens = delivery.subject.split(".")
        failed_at = headers.get("Bus-Failed-At")
        return DeadLetter(
            id=delivery.stream_seq,
            agent=tokens[3],
            code=headers.get("Bus-Dead-Code", tokens[4].replace("-", ".", 1)),
            reason=headers.get("Bus-Dead-Reason", ""),
            attempts=int(headers.get("Bus-Attempts", "0")),
            failed_at=datetime.fromisoformat(failed_at) if failed_at else delivery.stored_at,
            origin_subject=headers.get("Bus-Origin-Subject", ""),
            origin_seq=int(headers.get("Bus-Origin-Seq", "0")),
            details=json.loads(headers.get("Bus-Dead-Details", "{}")),
            headers=headers,
            data=data,
        )


def _carried(headers: Any) -> dict[str, str]:
    return {f"{_KEPT_AS}{name}" if name.startswith(_BROKER_HEADER) else name: value for name, value in headers.items()}


def _one_line(text: str, limit: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def _details(failure: ErrorInfo) -> str:
    """The details as ASCII JSON; the schema goes first when they are too long for a header."""
    details = dict(failure.details)
    text = json.dumps(details, default=str)
    if len(text) > MAX_DETAILS_CHARS:
        details.pop("schema", None)
        text = json.dumps(details, default=str)
    return text if len(text) <= MAX_DETAILS_CHARS else "{}"
