"""The feed: what the callee tells about one call on the way, and how far it may run ahead of its reader (REG-7)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from bus.broker.connection import Connection
from bus.broker.store import store
from bus.broker.wire import publish_command
from bus.calls.asked import Asked
from bus.calls.letters import letter
from bus.calls.records import Record, Told
from bus.contracts.result import Result
from bus.envelope import Envelope, dedupe_header
from bus.errors import BusError, Rejected
from bus.trust.labels import labels_of
from bus.workflow.artifacts import Artifacts
from bus.workflow.references import refer

log = logging.getLogger("bus.calls")

MAX_MESSAGE_CHARS = 2000
STANDSTILL_S = 1.0


class Feed:
    """The records of one call, in order and without gaps.

    Of a streamed call each is confirmed by the broker before the next; one that is not yet is kept, and stored again
    under the same id, until it is. Of a call that is only observed they are sent once, and a failure is not told: the
    result is what counts. `ends_at` is the monotonic time at which the call ends; `labels` says where its data comes
    from.
    """

    def __init__(
        self,
        connection: Connection,
        artifacts: Artifacts,
        envelope: Envelope,
        asked: Asked,
        *,
        agent: str,
        instance: str,
        ends_at: float,
    ) -> None:
        assert asked.observe is not None
        self.streams = asked.streams
        self.labels: Callable[[], list[str]] = lambda: labels_of(envelope)
        self._connection = connection
        self._artifacts = artifacts
        self._envelope = envelope
        self._call_id = asked.tool_call_id
        self._window = asked.observe
        self._agent = agent
        self._instance = instance
        self._ends_at = ends_at
        self._subject = connection.subjects.stream(agent, asked.tool_call_id)
        self._in_turn = asyncio.Lock()
        self._number = 0
        self._chunks = 0
        self._unconfirmed: tuple[str, bytes] | None = None
        self._unread: deque[tuple[int, int]] = deque()
        self._unread_bytes = 0
        self._read = 0
        self._granted = asyncio.Event()
        self._heard_at = self._looked_at = time.monotonic()
        self._is_over = False

    async def begin(self, tool_name: str, tool_version: str) -> None:
        """Tells that the call is taken. Raises BrokerError."""
        left_s = max(0.0, self._ends_at - time.monotonic())
        start: dict[str, Any] = {"tool_name": tool_name, "tool_version": tool_version, "timeout_s": round(left_s, 3)}
        if self.streams:
            start["window"] = {"chunks": self._window.chunks, "bytes": self._window.bytes}
        await self.tell(Told.START, start)

    async def chunk(self, data: Any) -> None:
        """Tells the next chunk, as soon as the reader has room for it.

        Raises BrokerError, and Rejected for what JSON has no word for or what is too large.
        """
        while self._unread and not (
            len(self._unread) < self._window.chunks and self._unread_bytes < self._window.bytes
        ):
            self._granted.clear()
            await self._granted.wait()
        size_bytes = await self._append(Told.CHUNK, {"chunk": self._chunks + 1, "data": data})
        self._unread.append((self._chunks, size_bytes))
        self._unread_bytes += size_bytes
        self._forget_read()

    async def tell(self, told: Told, payload: dict[str, Any]) -> None:
        """Tells what happens on the way. Raises BrokerError where the call is streamed."""
        if self._is_over:
            return
        if self.streams:
            await self._append(told, payload)
            return
        with contextlib.suppress(BusError):
            await self._append(told, payload)

    async def tool_call(self, name: str, call_id: str, calling: Callable[[], Awaitable[Result]]) -> Result:
        """Awaits a call that the capability makes, and tells its beginning and what it came to."""
        call: dict[str, Any] = {"tool_call_id": call_id, "tool_name": name}
        await self.tell(Told.TOOL_STARTED, {"call": call})
        began = time.perf_counter()
        try:
            result = await calling()
        except BusError as problem:
            call |= {"ok": False, "error_code": problem.info.code, "elapsed_ms": _ms_since(began)}
            await self.tell(Told.TOOL_RESULT, {"call": call})
            raise
        await self.tell(Told.TOOL_RESULT, {"call": call | {"ok": True, "elapsed_ms": _ms_since(began)}})
        return result

    async def relay(self, record: Record) -> None:
        """Tells of a stream that the capability reads that it begins, and what it came to."""
        told, payload = record.told, record.payload
        meta, failed = payload.get("meta") or {}, payload.get("error") or {}
        name = payload.get("tool_name") or meta.get("tool_name")
        call: dict[str, Any] = {"tool_call_id": payload.get("tool_call_id"), "tool_name": name}
        if told is Told.START:
            await self.tell(Told.TOOL_STARTED, {"call": call})
        elif told is Told.END:
            call |= {"ok": payload.get("ok"), "elapsed_ms": meta.get("elapsed_ms")}
            await self.tell(Told.TOOL_RESULT, {"call": call | ({"error_code": failed["code"]} if failed else {})})

    async def finish(self, result: Result) -> None:
        """Tells how the call ended, as the last record. What cannot be told is told in the log."""
        self._ends_at = time.monotonic() + self._connection.settings.publish_timeout_s
        payload = result.to_payload()
        payload.pop("data", None)
        payload["chunks"] = self._chunks
        try:
            await self._append(Told.END, payload, status=result.status)
        except BusError as problem:
            log.warning("the end of the stream %s is not stored: %s", self._subject, problem.info.message)
        self._is_over = True

    @property
    def chunks(self) -> int:
        """How many chunks there were."""
        return self._chunks

    def grant(self, read: int) -> None:
        """Hears from the reader that it has taken the chunks up to this number."""
        self._heard_at = time.monotonic()
        self._read = max(self._read, min(read, self._chunks))
        self._forget_read()

    def is_abandoned(self) -> bool:
        """Whether the reader has been silent for too long; to be asked many times a second.

        While the broker is away, or this process stands still, nobody can be heard, so that time does not count.
        """
        if not self.streams or self._is_over:
            return False
        now = time.monotonic()
        if not self._connection.is_connected or now - self._looked_at > STANDSTILL_S:
            self._heard_at = now
        self._looked_at = now
        return now - self._heard_at > self._connection.settings.reader_timeout_s

    def _forget_read(self) -> None:
        while self._unread and self._unread[0][0] <= self._read:
            self._unread_bytes -= self._unread.popleft()[1]
        self._granted.set()

    async def _append(self, told: Told, payload: dict[str, Any], *, status: str | None = None) -> int:
        """Stores a record and returns its size. Cancelled or failed, it is stored before the next one."""
        async with self._in_turn:
            await self._confirm()
            number = self._number + 1
            envelope = self._envelope
            extensions: dict[str, Any] = {"causation_id": envelope.message_id}
            if labels := self.labels():
                extensions["labels"] = labels
            fields, data = letter(
                sender=self._agent,
                to=envelope.sender,
                type=told.value,
                trace_id=envelope.trace_id,
                session_id=envelope.session_id,
                workflow_id=envelope.workflow_id,
                role="tool",
                status=status,
                extensions=extensions,
                payload={**payload, "tool_call_id": self._call_id, "number": number, "instance": self._instance},
            )
            size_bytes = len(data)
            if size_bytes > self._connection.settings.inline_limit:
                whole, over = Envelope.from_fields(fields), self._connection.settings.inline_limit
                data = (await refer(whole, self._artifacts, over_bytes=over, timeout_s=self._left_s)).encode()
            self._number = number
            self._chunks += told is Told.CHUNK
            self._unconfirmed = (f"{dedupe_header(envelope.sender, envelope.message_id)}:{number}", data)
            try:
                await self._confirm()
            except Rejected:
                # Certainly not stored, and never will be.
                self._unconfirmed = None
                self._number -= 1
                self._chunks -= told is Told.CHUNK
                raise
            return size_bytes

    async def _confirm(self) -> None:
        if self._unconfirmed is None:
            return
        message_id, data = self._unconfirmed
        if self.streams:
            await store(self._connection, self._subject, data, {"Nats-Msg-Id": message_id}, timeout_s=self._left_s)
            self._unconfirmed = None
        else:
            self._unconfirmed = None
            await self._connection.send(publish_command(self._subject, "", b"", data))

    @property
    def _left_s(self) -> float:
        return max(0.1, self._ends_at - time.monotonic())


def _ms_since(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 3)
