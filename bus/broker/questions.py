"""Questions: one put to many at once, and what answers them. Core messages: who is away does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from bus.broker.connection import Connection, Subscription
from bus.broker.tasks import end
from bus.errors import BusError

log = logging.getLogger("bus.broker")

MAX_WAITING = 64


class _Arrived(Protocol):
    @property
    def data(self) -> bytes: ...

    @property
    def reply(self) -> str: ...


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

    def arrived(message: _Arrived) -> None:
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
    """Answers what is asked on one subject, one after another. `answer` must not block, nor raise."""

    def __init__(self, connection: Connection, subject: str, answer: Callable[[bytes], bytes]) -> None:
        self._connection = connection
        self._subject = subject
        self._answer = answer
        # Questions are rare; whoever floods us with them loses the oldest.
        self._waiting: deque[tuple[str, bytes]] = deque(maxlen=MAX_WAITING)
        self._arrived = asyncio.Event()
        self._subscription: Subscription | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begins to answer. Raises BrokerError."""
        self._subscription = await self._connection.subscribe(self._subject, self._take)
        self._task = asyncio.create_task(self._run(), name=f"answer on {self._subject}")

    async def stop(self) -> None:
        """Stops; bounded; a second call does nothing."""
        if self._subscription is not None:
            await self._subscription.drain()
            self._subscription = None
        await end(self._task)

    def _take(self, message: _Arrived) -> None:
        if message.reply:
            self._waiting.append((message.reply, message.data))
            self._arrived.set()

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                reply, question = self._waiting.popleft()
                try:
                    await self._connection.publish(reply, self._answer(question))
                except BusError as problem:
                    log.debug("an answer on %s is not sent: %s", self._subject, problem.info.message)
