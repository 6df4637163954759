"""Dedupe: a message that was completed once is not handled again, by any replica, for the window's length.

Memory holds a 128-bit digest for each completion, fed by the completions stream that every replica appends to
(`commits.py`) and reads. What is in hand elsewhere is asked of the peers (`peers.py`), and only when the broker's word
that it delivers a message for the first time is in doubt.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from enum import Enum

from bus.broker.connection import Connection
from bus.broker.reader import StreamReader
from bus.broker.streams import StreamNames, last_seq_of
from bus.broker.tasks import end
from bus.delivery.peers import Peers
from bus.delivery.remembered import Remembered
from bus.errors import error
from bus.workflow import completions

log = logging.getLogger("bus.delivery")

CATCH_UP_S = 10.0
PROMPT_S = 0.05
# What a peer asked about may be on its way to us too.
ASKED_IDS = 100_000


class Claim(Enum):
    """What a claim found."""

    TAKEN = "taken"
    COMPLETED = "completed"
    HELD = "held"


def digest(sender: str, message_id: str) -> bytes:
    """128 bits: a false duplicate would be a lost message, so never fewer."""
    return hashlib.blake2b(f"{sender}\0{message_id}".encode(), digest_size=16).digest()


class Dedupe:
    """The claims and completions of one replica of one agent.

    A delivery's word for being the first is in doubt when the broker itself says that it is a redelivery; from the
    start, a new server or a new consumer on until all peers have answered once; when its sequence is not above what any
    peer had been given by then, since a broker that was killed sends that again as if for the first time; and when a
    peer asked about it. Everything else is claimed without a word.
    """

    def __init__(self, connection: Connection, agent: str) -> None:
        settings = connection.settings
        self._connection = connection
        self._agent = agent
        self._window_s = settings.dedupe_window_s
        self._remembered = Remembered(window_s=settings.dedupe_window_s, max_ids=settings.dedupe_max_ids)
        self._claims: set[bytes] = set()
        self._asking: set[bytes] = set()
        self._yielded: set[bytes] = set()
        self._asked_of = Remembered(window_s=settings.ack_wait_s, max_ids=ASKED_IDS)
        self._peers = Peers(connection, agent, holds=self._holds, doubted=self._doubt)
        self._seen_seq = 0
        self._server_id = ""
        self._doubts = 1
        self._resolved_doubts = 0
        self._breaks = 0
        self._caught_up_breaks = 0
        self._advanced = asyncio.Condition()
        self._one_round = asyncio.Lock()
        self._next_round: _Round | None = None
        self._rounds: set[asyncio.Task[None]] = set()
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
        self._server_id = self._connection.server_id
        self._connection.on_reconnect(self._reconnected)
        self._follower = self._connection.tasks.start(self._follow(reader), name=f"completions of {self._agent}")
        await self._peers.start()

    async def stop(self) -> None:
        """Stops following; bounded; a second call does nothing."""
        if self._follower is not None:
            self._connection.remove_listener(self._reconnected)
            await self._peers.stop()
            await end(self._follower, *self._rounds)
            self._follower = None
        await self._stack.aclose()

    # Of the class, because a member of an enum is found as slowly as a method is called.
    _TAKEN = Claim.TAKEN

    async def claim(self, key: bytes, *, seq: int, redelivered: bool) -> Claim:
        """Claims a message for this replica; `seq` is its sequence in its stream.

        When the delivery is in doubt, the peers are asked first and memory then catches up with the stream. Raises
        BrokerError when that cannot be done: handling it blindly could double it.
        """
        found = self.claim_undoubted(key, seq=seq, redelivered=redelivered)
        return found or await self.claim_doubted(key, seq=seq, redelivered=redelivered)

    def claim_undoubted(self, key: bytes, *, seq: int, redelivered: bool) -> Claim | None:
        """The claim of a delivery that is not in doubt; None for one that is, which `claim_doubted` then claims."""
        if key in self._remembered:
            return Claim.COMPLETED
        if key in self._claims:
            return Claim.HELD
        peers = self._peers
        if seq > peers.given:
            peers.given = seq
        is_behind = self._breaks != self._caught_up_breaks or self._doubts != self._resolved_doubts
        if redelivered or is_behind or seq <= peers.mark or key in self._asked_of:
            return None
        self._claims.add(key)
        return self._TAKEN

    async def claim_doubted(self, key: bytes, *, seq: int, redelivered: bool) -> Claim:
        """The second half of `claim`; call it at once after the first."""
        self._claims.add(key)
        found = Claim.HELD
        try:
            found = await self._resolve(key, seq=seq, redelivered=redelivered)
        finally:
            if found is not Claim.TAKEN:
                self._claims.discard(key)
        return found

    def release(self, key: bytes) -> None:
        """Gives a claim back, so that another delivery of the message can run."""
        self._claims.discard(key)

    def complete(self, key: bytes) -> None:
        """Ends a claim for good, once its completion is stored."""
        self._remembered.add(key, time.time())
        self._claims.discard(key)

    def stored(self, seq: int) -> None:
        """Hears of a record that this replica stored itself, which it need not read again."""
        if seq > self._seen_seq:
            self._own_seqs.add(seq)

    def suspect_copies(self) -> None:
        """Takes no delivery's word until the peers have answered, and tells them: the consumer is a new one."""
        self._doubt()
        self._peers.tell_doubt()

    def _doubt(self) -> None:
        self._doubts += 1

    def _reconnected(self) -> None:
        # A server that has not been started anew forgot nothing. What was recorded meanwhile has to be read.
        self._breaks += 1
        if self._connection.server_id != self._server_id:
            self._server_id = self._connection.server_id
            self._doubt()

    def _holds(self, asker: str, keys: Collection[bytes]) -> list[bytes]:
        """Which of these this replica has in hand. Of two that ask at once, the lower name goes on."""
        held, now = [], time.time()
        for key in keys:
            self._asked_of.add(key, now)
            if key in self._asking and asker < self._peers.replica:
                self._yielded.add(key)
            elif key in self._claims:
                held.append(key)
        return held

    async def _resolve(self, key: bytes, *, seq: int, redelivered: bool) -> Claim:
        self._asking.add(key)
        try:
            held = await self._ask(key, must_ask=redelivered or seq <= self._peers.mark or key in self._asked_of)
            if key in self._remembered:
                return Claim.COMPLETED
            return Claim.HELD if held or key in self._yielded else Claim.TAKEN
        finally:
            self._asking.discard(key)
            self._yielded.discard(key)

    async def _ask(self, key: bytes, *, must_ask: bool) -> bool:
        """Asks in a round that begins after this call; all who come before it begins share it."""
        if self._next_round is None:
            found = self._next_round = _Round()
            task = found.task = asyncio.create_task(self._run_round(found), name=f"claims of {self._agent}")
            self._rounds.add(task)
            task.add_done_callback(self._round_ended)
        found = self._next_round
        found.keys.add(key)
        found.must_ask |= must_ask
        assert found.task is not None
        await asyncio.shield(found.task)
        return key in found.held

    def _round_ended(self, task: asyncio.Task[None]) -> None:
        self._rounds.discard(task)
        if not task.cancelled():
            task.exception()  # Those who waited have it; when all were cancelled, nobody misses it.

    async def _run_round(self, found: _Round) -> None:
        async with self._one_round:
            self._next_round = None
            breaks = self._breaks
            # First, to know all peers and their doubts; then again, to know what they completed before they answered.
            await self._read_to_end()
            doubts = self._doubts
            if found.must_ask or doubts != self._resolved_doubts:
                found.held = await self._peers.ask(found.keys)
                await self._read_to_end()
            self._resolved_doubts, self._caught_up_breaks = doubts, breaks

    async def _read_to_end(self) -> None:
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
        if not identities and (presence := completions.decode_presence(data)) is not None:
            self._peers.learn(presence)
        at = stored_at.timestamp()
        for sender, message_id in identities:
            self._remembered.add(digest(sender, message_id), at)


class _Round:
    """The messages that one question to the peers is about, and the answer."""

    __slots__ = ("held", "keys", "must_ask", "task")

    def __init__(self) -> None:
        self.keys: set[bytes] = set()
        self.held: set[bytes] = set()
        self.must_ask = False
        self.task: asyncio.Task[None] | None = None
