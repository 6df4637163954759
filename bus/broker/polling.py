"""A question to everybody who listens: one core subject, as many answers as there are processes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from bus.broker.connection import Connection, Subscription
from bus.broker.tasks import end
from bus.errors import BusError

if TYPE_CHECKING:
    from bus.broker.parser import Arrival

log = logging.getLogger("bus.broker")

MAX_WAITING = 64


class Answering:
    """Answers every question on `subject` with `answer()`, from `start` until `stop`."""

    def __init__(self, connection: Connection, subject: str, answer: Callable[[], bytes]) -> None:
        self._connection = connection
        self._subject = subject
        self._answer = answer
        self._inboxes: asyncio.Queue[str] = asyncio.Queue(MAX_WAITING)
        self._subscription: Subscription | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begins to listen. Raises BrokerError."""
        self._task = self._connection.tasks.start(self._run(), name=f"answer {self._subject}")
        self._subscription = await self._connection.subscribe(self._subject, self._asked)

    async def stop(self) -> None:
        """Stops; a second call does nothing."""
        if self._subscription is not None:
            await self._subscription.drain()
        await end(self._task)

    def _asked(self, message: Arrival) -> None:
        if message.reply and not self._inboxes.full():
            self._inboxes.put_nowait(message.reply)

    async def _run(self) -> None:
        while True:
            inbox = await self._inboxes.get()
            try:
                await self._connection.publish(inbox, self._answer())
            except BusError as problem:
                log.debug("no answer on %s: %s", self._subject, problem.info.message)


async def ask_all(connection: Connection, subject: str, *, within_s: float) -> list[bytes]:
    """Asks everybody who listens on `subject` and returns what comes back within that time. Raises BrokerError."""
    answers: list[bytes] = []
    inbox = connection.new_inbox()
    subscription = await connection.subscribe(inbox, lambda message: answers.append(message.data))
    try:
        await connection.publish(subject, b"", reply=inbox)
        await asyncio.sleep(within_s)
    finally:
        await subscription.drain()
    # With nobody there the server answers itself, with nothing.
    return [one for one in answers if one]
