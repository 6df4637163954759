"""The pull loop: keeps requests outstanding at one consumer and hands on what arrives.

One inbox subscription lives as long as the loop, and the next request is sent when half of the credit is
used up. A request that went silent (missed heartbeats), was refused (409), or was lost in a reconnect is
written off and sent again; messages that arrive late are still handed on, so nothing is lost by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import orjson

from bus.broker.connection import Connection, Subscription
from bus.broker.parser import Arrival
from bus.broker.tasks import end
from bus.errors import BusError

log = logging.getLogger("bus.broker")

HEARTBEAT_S = 2.0
EXPIRES_S = 30.0
SILENCE_S = 2.5 * HEARTBEAT_S
RETRY_S = 0.25
NANOSECONDS = 1_000_000_000

_new_tuple = tuple.__new__


class Delivery(NamedTuple):
    """One message as a stream delivers it. `reply` is where it is settled; `attempt` counts from 1.

    A named tuple, because one is made for every message.
    """

    subject: str
    data: bytes
    headers: Mapping[str, str]
    reply: str
    stream_seq: int
    attempt: int
    stored_ns: int
    pending: int

    @property
    def stored_at(self) -> datetime:
        """When the stream took it, by the server's clock."""
        return datetime.fromtimestamp(self.stored_ns / NANOSECONDS, UTC)

    def age_s(self) -> float:
        """How long ago the stream took it; clocks that disagree count as 0."""
        return max(0.0, time.time() - self.stored_ns / NANOSECONDS)

    @property
    def consumer(self) -> tuple[str, int]:
        """The consumer that sent it, and which of its messages this is, from 1."""
        tokens = self.reply.split(".")
        return (tokens[3], int(tokens[6])) if len(tokens) == 9 else (tokens[5], int(tokens[8]))

    @classmethod
    def of(cls, message: Arrival) -> Delivery:
        """Reads the sequence, attempt and time from the reply subject (both of the server's forms).

        Raises ValueError for another reply subject.
        """
        reply = message.reply
        tokens = reply.split(".")
        first = 4 if len(tokens) == 9 else 6
        attempt, stream_seq, _, stored_ns, pending = tokens[first : first + 5]
        # The tuple itself, because the constructor of a named tuple is one more call.
        return _new_tuple(
            cls,
            (
                message.subject,
                message.data,
                message.headers,
                reply,
                int(stream_seq),
                int(attempt),
                int(stored_ns),
                int(pending),
            ),
        )


class PullLoop:
    """Pulls from one consumer for as long as it is started.

    `take` is called for each message, at once and in order; it must neither block nor raise. `room` says how
    many more messages the owner can hold; call `wake` when that grows. `missing` is awaited when the
    consumer is gone, and returns the name of a new one.
    """

    def __init__(
        self,
        connection: Connection,
        stream: str,
        consumer: str,
        *,
        take: Callable[[Delivery], None],
        room: Callable[[], int],
        missing: Callable[[], Awaitable[str]],
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._consumer = consumer
        self._take = take
        self._room = room
        self._missing = missing
        self._inbox = connection.new_inbox()
        self._wake = asyncio.Event()
        self._outstanding = 0
        # Half of the room at the last look: while more is outstanding, another look is in vain.
        self._ask_at = 0
        self._request_number = 0
        self._generation_start = 0
        self._heard_at = 0.0
        self._consumer_gone = False
        self._pause = False
        self._subscription: Subscription | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Subscribes and begins to pull."""
        self._subscription = await self._connection.subscribe(f"{self._inbox}.*", self._receive)
        self._connection.on_reconnect(self._write_off)
        self._task = self._connection.tasks.start(self._run(), name=f"pull {self._stream}.{self._consumer}")

    async def stop(self) -> None:
        """Stops pulling. Everything that the server had already sent is handed on before it returns."""
        if self._task is not None:
            await end(self._task)
            self._task = None
            self._connection.remove_listener(self._write_off)
        if self._subscription is not None:
            await self._subscription.drain()
            self._subscription = None

    def wake(self) -> None:
        """Says that there may be room for more."""
        self._wake.set()

    def replace_consumer(self) -> None:
        """Asks `missing` for another consumer, because something that this one sent was lost."""
        self._consumer_gone = True
        self._write_off()

    async def _run(self) -> None:
        while True:
            try:
                if self._consumer_gone:
                    self._consumer = await self._missing()
                    self._consumer_gone = False
                    self._write_off()  # A request that the old one still answers would keep us from asking the new one.
                if self._pause:
                    self._pause = False
                    await asyncio.sleep(RETRY_S)
                await self._connection.wait_connected(EXPIRES_S)
                room = self._room()
                wanted = room - self._outstanding
                self._ask_at = room // 2
                if wanted > 0 and self._outstanding * 2 <= room:
                    await self._request(wanted)
                    self._heard_at = time.monotonic()
            except BusError as problem:
                log.debug("pull from %s: %s", self._stream, problem)
                await asyncio.sleep(RETRY_S)
                continue
            if self._outstanding and time.monotonic() - self._heard_at > SILENCE_S:
                log.debug("pull from %s went silent; asking again", self._stream)
                # A deleted consumer is silent too: `missing` creates it again or finds that it exists.
                self._consumer_gone = True
                self._write_off()
                continue
            self._wake.clear()
            if self._pause or self._consumer_gone:
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._wake.wait()

    async def _request(self, batch: int) -> None:
        self._request_number += 1
        self._outstanding += batch
        await self._connection.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}",
            orjson.dumps(
                {
                    "batch": batch,
                    "expires": int(EXPIRES_S * NANOSECONDS),
                    "idle_heartbeat": int(HEARTBEAT_S * NANOSECONDS),
                }
            ),
            reply=f"{self._inbox}.{self._request_number}",
        )

    def _write_off(self) -> None:
        """Forgets every outstanding request; their late statuses are ignored."""
        self._outstanding = 0
        self._generation_start = self._request_number + 1
        self._wake.set()

    def _receive(self, message: Arrival) -> None:
        if message.subject.startswith(self._inbox):
            self._status(message)
            return
        self._heard_at = time.monotonic()
        if self._outstanding:
            self._outstanding -= 1
        try:
            delivery = Delivery.of(message)
        except ValueError:
            log.warning("something that no stream sent arrived on an inbox, and is ignored: %s", message.subject)
            return
        self._take(delivery)
        if self._outstanding <= self._ask_at and self._outstanding * 2 <= self._room():
            self._wake.set()

    def _status(self, message: Arrival) -> None:
        headers = message.headers or {}
        status = headers.get("Status", "")
        number = message.subject.rpartition(".")[2]
        if not number.isdecimal() or int(number) < self._generation_start:
            return
        self._heard_at = time.monotonic()
        if status == "100":
            return
        description = headers.get("Description", "").lower()
        if status == "503" or "deleted" in description or "leadership" in description:
            # No responders: the consumer, or all of JetStream, is not there (yet). A new leader may have forgotten what
            # the one before it had delivered, as a new consumer has.
            self._consumer_gone = True
            self._pause = status == "503"
            self._write_off()
        elif status == "408" or "Nats-Pending-Messages" in headers:
            self._outstanding = max(0, self._outstanding - int(headers.get("Nats-Pending-Messages", "0")))
            self._wake.set()
        else:
            log.debug("pull from %s: %s %s", self._stream, status, description)
            self._pause = True
            self._write_off()
