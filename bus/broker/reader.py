"""Ordered reading of a stream: from a sequence, a time or now, then live, across reconnects and restarts."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from datetime import datetime

from bus.broker.connection import Connection
from bus.broker.pull import Delivery, PullLoop
from bus.broker.streams import ensure_reader, last_seq
from bus.errors import error

BUFFER = 512
STALL_S = 10.0


class StreamReader:
    """Reads messages in stream order, each once. Use `async with`, then iterate.

    The consumer behind it is ephemeral and keeps no state: after a gap the reader makes a new one at the
    sequence that it needs next. Iteration never ends by itself; `until_now` ends at what was stored at its call.
    """

    def __init__(
        self,
        connection: Connection,
        stream: str,
        *,
        subjects: list[str] | None = None,
        start_seq: int | None = None,
        start_time: datetime | None = None,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._subjects = subjects or []
        self._start_seq = start_seq
        self._start_time = start_time
        self._last_seq = 0
        self._consumer = ""
        self._taken = 0
        self._matching = 0
        self._buffer: deque[Delivery] = deque()
        self._arrived = asyncio.Event()
        self._pull: PullLoop | None = None

    async def __aenter__(self) -> StreamReader:
        if self._start_seq is None and self._start_time is None:
            # "New" must mean new from this moment on, also when the consumer has to be made again later.
            newest = await self._connection.patiently(lambda: last_seq(self._connection, self._stream))
            self._start_seq = newest + 1
        consumer = await self._connection.patiently(self._create)
        self._pull = PullLoop(
            self._connection, self._stream, consumer, take=self._take, room=self._room, missing=self._create
        )
        await self._pull.start()
        # What was on the way when the link broke is lost, and without acknowledgements nothing sends it again.
        self._connection.on_reconnect(self._pull.replace_consumer)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._pull is not None:
            self._connection.remove_listener(self._pull.replace_consumer)
            await self._pull.stop()
            # The server would keep it for a minute, and counts it against its limits.
            await self._connection.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._consumer}", b"")

    @property
    def is_caught_up(self) -> bool:
        """Whether nothing was stored for it when it began."""
        return self._matching == 0

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        while True:
            yield await self.next()

    async def next(self) -> Delivery:
        """The next message; waits for it."""
        while not self._buffer:
            self._arrived.clear()
            await self._arrived.wait()
        delivery = self._buffer.popleft()
        if self._pull is not None and len(self._buffer) * 2 <= BUFFER:
            self._pull.wake()
        return delivery

    async def until_now(self) -> AsyncIterator[Delivery]:
        """Everything that the stream holds at the time of the call, then ends.

        Raises BrokerError `broker.unavailable` when the broker stops sending for `STALL_S`, or for
        `connect_timeout_s` when that is longer.
        """
        end = await self._connection.patiently(lambda: last_seq(self._connection, self._stream))
        if self._matching == 0:
            return
        stall_s = max(STALL_S, self._connection.settings.connect_timeout_s)
        while True:
            try:
                async with asyncio.timeout(stall_s):
                    delivery = await self.next()
            except TimeoutError:
                if not await self._is_more_stored():
                    return
                raise error(
                    "broker.unavailable", f"the stream {self._stream} stopped sending for {stall_s:.0f} s"
                ) from None
            if delivery.stream_seq <= end:
                yield delivery
            if delivery.stream_seq >= end or delivery.pending == 0:
                return

    async def _is_more_stored(self) -> bool:
        """Whether the rest is still there: it may have been deleted by somebody while it was read."""
        _, matching = await ensure_reader(
            self._connection,
            self._stream,
            subjects=self._subjects,
            start_seq=self._last_seq + 1 if self._last_seq else self._start_seq,
            start_time=self._start_time,
        )
        return matching > 0

    def _room(self) -> int:
        return BUFFER - len(self._buffer)

    def _take(self, delivery: Delivery) -> None:
        consumer, number = delivery.consumer
        if consumer != self._consumer:
            return  # One that was replaced; the new one sends it again.
        if number != self._taken + 1:
            if self._pull is not None:
                self._pull.replace_consumer()
            return
        self._taken = number
        self._last_seq = delivery.stream_seq
        self._buffer.append(delivery)
        self._arrived.set()

    async def _create(self) -> str:
        name, self._matching = await ensure_reader(
            self._connection,
            self._stream,
            subjects=self._subjects,
            start_seq=self._last_seq + 1 if self._last_seq else self._start_seq,
            start_time=self._start_time,
        )
        self._consumer, self._taken = name, 0
        return name
