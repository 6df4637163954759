"""Peers: what the replicas of one agent tell each other of the messages that they have in hand.

They talk over core NATS on one subject, and only when a delivery's word is in doubt (`dedupe.py`). Who must answer is
known from the completions stream, where every replica records that it began and that it left: a broker that has
just been killed and started has no other memory of who is about to connect again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

import orjson

from bus.broker.connection import Connection, Subscription
from bus.broker.store import store
from bus.broker.tasks import end
from bus.errors import BusError, error
from bus.workflow.completions import Presence, encode_presence

log = logging.getLogger("bus.delivery")

ASK_AGAIN_S = 0.25
# So many questions, each of which the broker has passed on: 8 seconds, in which every client that lives connects again.
ASKED_TIMES = 32
ECHO_S = 10.0
RECORD_S = 2.0
RECORD_AGAIN_S = 5.0
MIN_REFRESH_S = 1.0

RUNNING, LEFT, SILENT, DOUBTFUL = "running", "left", "silent", "doubtful"

Holds = Callable[[str, Collection[bytes]], Collection[bytes]]


class _Heard(Protocol):
    """What a subscription hands on."""

    subject: str
    reply: str
    data: bytes


class _Said(NamedTuple):
    """A question, an answer or an announcement of one replica."""

    replica: str
    given: int
    digests: list[bytes]

    @classmethod
    def read(cls, data: bytes) -> _Said:
        """Raises ValueError for anything else: everybody on the broker may publish here."""
        try:
            fields = orjson.loads(data)
            digests = [bytes.fromhex(one) for one in fields.get("digests", [])]
            return cls(str(fields["replica"]), int(fields["given"]), digests)
        except (AttributeError, KeyError, TypeError) as problem:
            raise ValueError(f"{type(problem).__name__}: {problem}") from problem

    def encode(self) -> bytes:
        fields: dict[str, object] = {"replica": self.replica, "given": self.given}
        if self.digests:
            fields["digests"] = [one.hex() for one in self.digests]
        return orjson.dumps(fields)


class _Question:
    """One question on its way: who has answered, what they hold, and whether the broker has passed it on."""

    __slots__ = ("answered", "echoed", "held")

    def __init__(self) -> None:
        self.answered: set[str] = set()
        self.held: set[bytes] = set()
        self.echoed = False


class Peers:
    """The other replicas of an agent, as one replica knows them.

    `given` is the highest sequence that this replica was ever given, `mark` the highest that any peer has named: what
    lies above it no peer had in hand when it said so. `holds` is asked with the asker and its digests, `doubted` is
    called when a peer found that deliveries may come twice; neither may block or raise.
    """

    def __init__(self, connection: Connection, agent: str, *, holds: Holds, doubted: Callable[[], None]) -> None:
        self._connection = connection
        self._agent = agent
        self._holds = holds
        self._doubted = doubted
        self.replica = os.urandom(8).hex()
        self.given = 0
        self.mark = 0
        self._known: set[str] = set()
        self._unanswered = Counter[str]()
        self._inbox = connection.new_inbox()
        self._number = 0
        self._questions: dict[str, _Question] = {}
        self._heard = asyncio.Event()
        self._to_say: list[tuple[str, bytes]] = []
        self._is_announcing = False
        self._is_doubt = False
        # A record older than the dedupe window is gone, so it is written anew in time.
        self._refresh_s = max(MIN_REFRESH_S, connection.settings.dedupe_window_s / 3)
        self._record_at = 0.0
        self._stirred = asyncio.Event()
        self._subscriptions: list[Subscription] = []
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listens, and records that this replica is there. Raises BrokerError."""
        subject = self._connection.subjects.claims(self._agent)
        self._subscriptions = [
            await self._connection.subscribe(subject, self._hear),
            await self._connection.subscribe(f"{self._inbox}.*", self._hear_answer),
        ]
        await self._record(Presence(self.replica, RUNNING), self._connection.settings.publish_timeout_s)
        self._record_at = time.monotonic() + self._refresh_s
        self._connection.on_reconnect(self.announce)
        self._task = self._connection.tasks.start(self._speak(), name=f"peers of {self._agent}")
        self.announce()

    async def stop(self) -> None:
        """Records that this replica has left, so that nobody waits for it; bounded; a second call does nothing."""
        if self._task is None:
            return
        self._connection.remove_listener(self.announce)
        await end(self._task)
        self._task = None
        # Before the record: whoever heard from it afterwards would wait for it again.
        for subscription in self._subscriptions:
            await subscription.drain()
        with contextlib.suppress(BusError):
            await self._record(Presence(self.replica, LEFT), RECORD_S)

    def announce(self) -> None:
        """Tells the peers that this replica is there."""
        self._is_announcing = True
        self._stirred.set()

    def tell_doubt(self) -> None:
        """Records that deliveries may come twice, for the peers that are cut off now too."""
        self._is_doubt = True
        self._stirred.set()

    def learn(self, presence: Presence) -> None:
        """Takes a record of the completions stream."""
        if presence.replica == self.replica:
            if presence.state == SILENT:
                # Somebody gave this replica up too early.
                self._record_at = 0.0
                self._stirred.set()
        elif presence.state in (RUNNING, DOUBTFUL):
            self._known.add(presence.replica)
            if presence.state == DOUBTFUL:
                self._doubted()
        else:
            self._known.discard(presence.replica)
            self._unanswered.pop(presence.replica, None)
            self._heard.set()

    async def ask(self, keys: Collection[bytes]) -> set[bytes]:
        """Which of these a peer has in hand, by the word of every peer that answers.

        Returns once all known peers have answered; at once when there is none. A peer that leaves `ASKED_TIMES`
        questions unanswered is taken for dead. Raises BrokerError when the link breaks or the broker passes nothing on.
        """
        epoch = self._connection.epoch
        self._number += 1
        number = str(self._number)
        question = self._questions[number] = _Question()
        asked = _Said(self.replica, self.given, list(keys)).encode()
        try:
            while True:
                question.echoed = False
                subject = self._connection.subjects.claims(self._agent)
                await self._connection.publish(subject, asked, reply=f"{self._inbox}.{number}")
                if await self._is_answered(question, epoch):
                    break
                await self._give_up(self._known - question.answered)
            return question.held
        finally:
            del self._questions[number]

    async def _is_answered(self, question: _Question, epoch: int) -> bool:
        """Waits for the answers to one question; the time begins when the broker has passed the question on."""
        deadline = time.monotonic() + ECHO_S
        was_echoed = False
        while not self._known <= question.answered:
            if self._connection.epoch != epoch or not self._connection.is_connected:
                raise error("broker.unavailable", "the link to the broker broke while peers were asked")
            if question.echoed and not was_echoed:
                was_echoed, deadline = True, time.monotonic() + ASK_AGAIN_S
            if time.monotonic() >= deadline:
                if was_echoed:
                    return False
                raise error("broker.unavailable", f"the broker passed no question to peers on in {ECHO_S:.0f} s")
            self._heard.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(ASK_AGAIN_S, deadline - time.monotonic())):
                    await self._heard.wait()
        return True

    async def _give_up(self, silent: set[str]) -> None:
        """Counts the questions that each left unanswered, also those before the link broke: links may break often."""
        self._unanswered.update(silent)
        for replica in sorted(silent):
            if self._unanswered[replica] < ASKED_TIMES:
                continue
            log.warning("a replica of %s (%s) does not answer and is taken for dead", self._agent, replica)
            self._known.discard(replica)
            del self._unanswered[replica]
            with contextlib.suppress(BusError):
                await self._record(Presence(replica, SILENT), RECORD_S)

    def _hear(self, message: _Heard) -> None:
        try:
            said = _Said.read(message.data)
        except ValueError as problem:
            log.debug("something on %s is no question of a replica: %s", message.subject, problem)
            return
        if said.replica == self.replica:
            question = self._questions.get(message.reply.rpartition(".")[2])
            if question is not None and message.reply.startswith(self._inbox):
                question.echoed = True
                self._heard.set()
            return
        self._note(said)
        if message.reply:
            held = self._holds(said.replica, said.digests)
            self._to_say.append((message.reply, _Said(self.replica, self.given, list(held)).encode()))
            self._stirred.set()

    def _hear_answer(self, message: _Heard) -> None:
        try:
            said = _Said.read(message.data)
        except ValueError as problem:
            log.debug("an answer of a replica of %s cannot be read: %s", self._agent, problem)
            return
        self._note(said)
        question = self._questions.get(message.subject.rpartition(".")[2])
        if question is not None:
            question.answered.add(said.replica)
            question.held.update(said.digests)
            self._heard.set()

    def _note(self, said: _Said) -> None:
        self._known.add(said.replica)
        self._unanswered.pop(said.replica, None)
        self.mark = max(self.mark, said.given)

    async def _speak(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._record_at - time.monotonic())):
                    await self._stirred.wait()
            self._stirred.clear()
            to_say, self._to_say = self._to_say, []
            try:
                if self._is_announcing:
                    said = _Said(self.replica, self.given, [])
                    self._is_announcing = False
                    to_say.append((self._connection.subjects.claims(self._agent), said.encode()))
                for subject, body in to_say:
                    await self._connection.publish(subject, body)
                if self._is_doubt:
                    await self._record(Presence(self.replica, DOUBTFUL), RECORD_S)
                    self._is_doubt = False
                if time.monotonic() >= self._record_at:
                    self._record_at = time.monotonic() + RECORD_AGAIN_S
                    await self._record(Presence(self.replica, RUNNING), RECORD_S)
                    self._record_at = time.monotonic() + self._refresh_s
            except BusError as problem:
                # Who asked asks again, and a reconnection announces this replica, and its doubts, anew.
                log.debug("peers of %s: %s", self._agent, problem.info.message)

    async def _record(self, presence: Presence, timeout_s: float) -> None:
        subject = self._connection.subjects.done(self._agent)
        await store(self._connection, subject, encode_presence(presence), {}, timeout_s=timeout_s)
