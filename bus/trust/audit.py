"""The audit: records of calls, stored in groups beside the calls and never in their way (SEC-6).

A call only puts its record into a list. One task takes groups from there and stores them; while the broker is slow or
away the list grows to its limit, and what comes then is counted, logged, and told in the next group.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections import deque

import orjson

from bus.broker.connection import Connection
from bus.broker.store import store
from bus.broker.tasks import end
from bus.errors import BusError
from bus.telemetry.redaction import Redaction
from bus.trust.call_record import PAYLOADS, Wire

log = logging.getLogger("bus.trust")

LINGER_S = 0.1
MAX_GROUP = 512
MAX_GROUP_BYTES = 512 * 1024
MAX_WAITING = 20_000
MAX_WAITING_WITH_PAYLOADS = 2_000
ENCODED_AT_ONCE = 32
RETRY_S = 0.5
SLOWEST_RETRY_S = 5.0
CLOSE_S = 2.0
TELL_S = 60.0


class Audit:
    """Writes the records of one agent or client. What a crash can lose is what was not stored yet: `LINGER_S` of it."""

    def __init__(self, connection: Connection, writer: str) -> None:
        settings = connection.settings
        self.keeps_payloads = settings.audit_payloads
        self.dropped = 0
        self._connection = connection
        self._subject = connection.subjects.audit(writer)
        self._redaction = Redaction(name.strip() for name in settings.log_redact.split(","))
        self._waiting: deque[bytes | Wire] = deque()
        self._untold = 0
        self._told_at = float("-inf")
        self._arrived = asyncio.Event()
        self._soon = asyncio.Event()
        self._max_waiting = MAX_WAITING_WITH_PAYLOADS if self.keeps_payloads else MAX_WAITING
        self._idle = asyncio.Event()
        self._in_hand = 0
        self._is_closing = False
        self._id = uuid.uuid4().hex
        self._number = 0
        self._task: asyncio.Task[None] | None = None

    def add(self, record: Wire) -> None:
        """Takes a record as `written` makes it; never waits, never fails. Beyond 20,000 that wait it only counts it."""
        count = len(self._waiting)
        if count >= self._max_waiting:
            self._drop(1, "the broker does not store them fast enough")
            return
        # Bytes at once: thousands of objects that wait would keep the collector of garbage busy. Payloads take longer,
        # so that they are left to the task.
        encoded = record if self.keeps_payloads else self._encode(record)
        if encoded is None:
            return
        self._waiting.append(encoded)
        if count == 0:
            self._arrived.set()
            self._idle.clear()
            if self._task is None:
                self._task = self._connection.tasks.start(self._run(), name=f"audit {self._subject}")
        elif count >= MAX_GROUP:
            self._soon.set()

    async def close(self) -> None:
        """Stores what waits, within 2 s, then stops; what is left is dropped and told. A second call does nothing."""
        if self._task is None:
            return
        self._is_closing = True
        self._soon.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._idle.wait()
        await end(self._task)
        self._task = None
        if left := len(self._waiting) + self._in_hand:
            self._told_at = float("-inf")
            self._drop(left, "the broker did not store them before the end")
            self._waiting.clear()

    def _drop(self, count: int, why: str) -> None:
        self.dropped += count
        self._untold += count
        if (now := time.monotonic()) - self._told_at >= TELL_S:
            self._told_at = now
            log.error("%d records of calls are dropped, %d in all: %s", count, self.dropped, why)

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    await self._soon.wait()
            untold = self._untold
            data = await self._group(untold)
            if not self._waiting:
                self._arrived.clear()
            if len(self._waiting) < MAX_GROUP and not self._is_closing:
                self._soon.clear()
            await self._store(data)
            self._untold -= untold
            self._in_hand = 0
            if not self._waiting:
                self._idle.set()

    async def _group(self, untold: int) -> bytes:
        """The next records as the body of one message."""
        limit = min(MAX_GROUP_BYTES, self._connection.max_message_bytes - 1024)
        parts: list[bytes] = []
        size = 0
        while self._waiting and len(parts) < MAX_GROUP:
            first = self._waiting[0]
            part = first if isinstance(first, bytes) else self._encode(first)
            if part is None:
                self._waiting.popleft()
                continue
            if parts and size + len(part) > limit:
                break
            self._waiting.popleft()
            self._in_hand += 1
            parts.append(part)
            size += len(part) + 1
            if self.keeps_payloads and len(parts) % ENCODED_AT_ONCE == 0:
                # Calls go on between: a whole group at once would hold them up for milliseconds.
                await asyncio.sleep(0)
        dropped = b',"dropped":%d' % untold if untold else b""
        return b'{"calls":[' + b",".join(parts) + b"]" + dropped + b"}"

    def _encode(self, record: Wire) -> bytes | None:
        """The record as JSON, secrets hidden; None for one that is dropped, because JSON has no word for it."""
        for name in PAYLOADS if self.keeps_payloads else ():
            if (text := record.get(name)) is not None:
                record = {**record, name: self._redaction.value(orjson.loads(text))}
        try:
            return orjson.dumps(record)
        except TypeError as problem:
            # Half a character in a name that a caller made up.
            self._drop(1, f"it cannot be written: {problem}")
            return None

    async def _store(self, data: bytes) -> None:
        self._number += 1
        # One that was stored while its answer was lost is stored once.
        headers = {"Nats-Msg-Id": f"{self._id}:{self._number}"}
        pause_s = RETRY_S
        while True:
            try:
                timeout_s = self._connection.settings.publish_timeout_s
                await store(self._connection, self._subject, data, headers, timeout_s=timeout_s)
                return
            except BusError as problem:
                if problem.info.code == "protocol.too_large":
                    return self._drop(self._in_hand, problem.info.message)
                log.warning("%d records of calls are not stored yet: %s", self._in_hand, problem.info.message)
            await asyncio.sleep(pause_s)
            pause_s = min(SLOWEST_RETRY_S, pause_s * 2)
