"""Questions: one put to many at once, and what answers them. Core messages: who is away does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from bus.broker.connection import Connection, Subscription
from bus.broker.parser import Arrival
from bus.broker.tasks import end
from bus.errors import BusError

log = logging.getLogger("bus.broker")

MAX_WAITING = 64


async def ask_all(
    connection: Connection,
    subjects: Iterable[str],
    question: bytes,
    take: Callable[[bytes], bool],
    *,
    timeout_s: float,
) -> None:
    """Asks on every subject, and gives each answer to `take` until that returns True, at most for `timeout_s`.

    An answer is empty when nobody listens on one of the subjects. `take` must neither block nor raise. Raises
    BrokerError.
    """
    complete = asyncio.Event()

    def arrived(message: Arrival) -> None:
        if take(message.data):
            complete.set()

    inbox = connection.new_inbox()
    subscription = await connection.subscribe(inbox, arrived)
    try:
        for subject in subjects:
            await connection.publish(subject, question, reply=inbox)
        await connection.flush()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await complete.wait()
    finally:
        await subscription.drain()


class Answering:
    """Answers what is asked on each of some subjects, one question after another.

    `answers` has for each subject what makes an answer of a question; it must neither block nor raise. An answer that
    is empty, or larger than the server takes, is not sent.
    """

    def __init__(self, connection: Connection, answers: Mapping[str, Callable[[bytes], bytes]], *, name: str) -> None:
        self._connection = connection
        self._answers = answers
        self._name = name
        # Questions are rare; whoever floods us with them loses the oldest.
        self._waiting: deque[tuple[str, str, bytes]] = deque(maxlen=MAX_WAITING)
        self._arrived = asyncio.Event()
        self._subscriptions: list[Subscription] = []
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begins to answer: who asks afterwards, from wherever, is heard. Raises BrokerError."""
        self._task = self._connection.tasks.start(self._run(), name=f"answers of {self._name}")
        for subject in self._answers:
            self._subscriptions.append(await self._connection.subscribe(subject, self._take))
        await self._connection.flush()

    async def stop(self) -> None:
        """Stops; bounded; a second call does nothing."""
        subscriptions, self._subscriptions = self._subscriptions, []
        await asyncio.gather(*(one.drain() for one in subscriptions))
        await end(self._task)

    def _take(self, message: Arrival) -> None:
        if message.reply:
            self._waiting.append((message.subject, message.reply, message.data))
            self._arrived.set()

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                subject, reply, question = self._waiting.popleft()
                answer = self._answers[subject](question)
                if len(answer) > self._connection.max_message_bytes:
                    log.warning("an answer on %s is too large to be sent: %d bytes", subject, len(answer))
                    continue
                try:
                    if answer:
                        await self._connection.publish(reply, answer)
                except BusError as problem:
                    log.debug("an answer on %s is not sent: %s", subject, problem.info.message)
