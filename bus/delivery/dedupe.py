"""Dedupe: a message that was completed once is not handled again, by any replica, for the window's length.

Memory holds a 128-bit digest for each completion, fed by the completions stream that every replica appends to
(`commits.py`) and reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from datetime import UTC, datetime, timedelta
from enum import Enum

from bus.broker.connection import Connection
from bus.broker.reader import StreamReader
from bus.broker.streams import StreamNames, last_seq_of
from bus.broker.tasks import end
from bus.delivery.remembered import Remembered
from bus.errors import error
from bus.workflow import completions

log = logging.getLogger("bus.delivery")

CATCH_UP_S = 10.0
PROMPT_S = 0.05
# A broker that was killed forgets what it had delivered and sends it again as if for the first time.
SUSPECT_S = 10.0
# A replica that starts while another stops, or after a broker was killed, may be given what is just being completed.
START_SUSPECT_S = 1.0


class Claim(Enum):
    """What a claim found."""

    TAKEN = "taken"
    COMPLETED = "completed"
    HELD = "held"


def digest(sender: str, message_id: str) -> bytes:
    """128 bits: a false duplicate would be a lost message, so never fewer."""
    return hashlib.blake2b(f"{sender}\0{message_id}".encode(), digest_size=16).digest()


class Dedupe:
    """The claims and completions of one replica of one agent."""

    def __init__(self, connection: Connection, agent: str) -> None:
        settings = connection.settings
        self._connection = connection
        self._agent = agent
        self._window_s = settings.dedupe_window_s
        self._remembered = Remembered(window_s=settings.dedupe_window_s, max_ids=settings.dedupe_max_ids)
        self._claims: set[bytes] = set()
        self._seen_seq = 0
        self._breaks = 0
        self._caught_up_at = 0
        self._suspect_until = 0.0
        self._advanced = asyncio.Condition()
        self._one_round = asyncio.Lock()
        self._next_round: asyncio.Task[None] | None = None
        self._own_seqs: set[int] = set()
        self._follower: asyncio.Task[None] | None = None
        self._stack = contextlib.AsyncExitStack()

    async def start(self) -> None:
        """Reads the window's completions, then follows them live. Raises BrokerError."""
        reader = StreamReader(
            self._connection,
            StreamNames.of(self._connection.settings.namespace).done,
            subjects=[self._connection.subjects.done(self._agent)],
            start_time=datetime.now(UTC) - timedelta(seconds=self._window_s),
        )
        await self._stack.enter_async_context(reader)
        async for delivery in reader.until_now():
            self._learn(delivery.data, delivery.stored_at, delivery.stream_seq)
        self._suspect_until = time.monotonic() + START_SUSPECT_S
        self._connection.on_reconnect(self.suspect_copies)
        self._follower = asyncio.create_task(self._follow(reader), name=f"completions of {self._agent}")

    async def stop(self) -> None:
        """Stops following; bounded; a second call does nothing."""
        if self._follower is not None:
            self._connection.remove_listener(self.suspect_copies)
            await end(self._follower, self._next_round)
            self._follower = None
        await self._stack.aclose()

    async def claim(self, key: bytes, *, redelivered: bool) -> Claim:
        """Claims a message for this replica.

        When the broker says that it is a redelivery, or the link was down, memory first catches up with the
        stream. Raises BrokerError when it cannot: handling it blindly could double it.
        """
        if key in self._remembered:
            return Claim.COMPLETED
        if key in self._claims:
            return Claim.HELD
        self._claims.add(key)
        if redelivered or self._breaks != self._caught_up_at or time.monotonic() < self._suspect_until:
            try:
                await self._catch_up()
            except BaseException:
                self._claims.discard(key)
                raise
            if key in self._remembered:
                self._claims.discard(key)
                return Claim.COMPLETED
        return Claim.TAKEN

    def release(self, key: bytes) -> None:
        """Gives a claim back, so that another delivery of the message can run."""
        self._claims.discard(key)

    def complete(self, key: bytes) -> None:
        """Ends a claim for good; the record of it is the commit's to store."""
        self._remembered.add(key, time.time())
        self._claims.discard(key)

    def stored(self, seq: int) -> None:
        """Hears of a record that this replica stored itself, which it need not read again."""
        if seq > self._seen_seq:
            self._own_seqs.add(seq)

    def suspect_copies(self) -> None:
        """Takes no delivery's word for being the first for a while: the link, or the consumer, is a new one."""
        self._breaks += 1
        self._suspect_until = time.monotonic() + SUSPECT_S

    async def _catch_up(self) -> None:
        """Catches up in a round that begins after this call; all who come before it begins share it."""
        if self._next_round is None:
            self._next_round = asyncio.create_task(self._round(), name=f"catch up {self._agent}")
        await asyncio.shield(self._next_round)

    async def _round(self) -> None:
        async with self._one_round:
            self._next_round = None
            await self._read_to_end()

    async def _read_to_end(self) -> None:
        breaks = self._breaks
        stream = StreamNames.of(self._connection.settings.namespace).done
        subject = self._connection.subjects.done(self._agent)
        try:
            async with asyncio.timeout(CATCH_UP_S):
                while True:
                    target = await last_seq_of(self._connection, stream, subject)
                    asked_at = time.monotonic()
                    async with self._advanced:
                        while self._seen_seq < target:
                            await self._advanced.wait()
                    # After a long wait, as behind a new reader, the end may have moved on.
                    if time.monotonic() - asked_at < PROMPT_S:
                        break
        except TimeoutError:
            raise error(
                "broker.unavailable",
                f"{self._agent} could not catch up with its completions in {CATCH_UP_S:.0f} s",
            ) from None
        self._caught_up_at = breaks

    async def _follow(self, reader: StreamReader) -> None:
        async for delivery in reader:
            self._learn(delivery.data, delivery.stored_at, delivery.stream_seq)
            async with self._advanced:
                self._advanced.notify_all()

    def _learn(self, data: bytes, stored_at: datetime, seq: int) -> None:
        self._seen_seq = seq
        if seq in self._own_seqs:
            self._own_seqs.discard(seq)
            return
        try:
            identities = completions.decode_identities(data)
        except ValueError as problem:
            log.warning("record %d of what %s completed cannot be read and is ignored: %s", seq, self._agent, problem)
            return
        at = stored_at.timestamp()
        for sender, message_id in identities:
            self._remembered.add(digest(sender, message_id), at)
