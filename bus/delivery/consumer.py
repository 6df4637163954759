"""The consumer: one replica's share of an agent's messages, kept alive while they are handled, drained on stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from bus.broker.connection import Connection
from bus.broker.pull import Delivery, PullLoop
from bus.broker.streams import StreamNames, ensure_consumer
from bus.delivery.pipeline import Pipeline
from bus.errors import BusError

log = logging.getLogger("bus.delivery")

STOP_S = 5.0


class Consumer:
    """Pulls for one agent and runs the pipeline for each message, at most `concurrency` at once."""

    def __init__(self, connection: Connection, pipeline: Pipeline, *, agent: str, concurrency: int) -> None:
        self._connection = connection
        self._pipeline = pipeline
        self._agent = agent
        self._concurrency = concurrency
        self._in_hand: dict[str, tuple[Delivery, asyncio.Task[None] | None]] = {}
        self._idle = asyncio.Event()
        self._hurried = asyncio.Event()
        self._pull: PullLoop | None = None
        self._keep_alive: asyncio.Task[None] | None = None

    @property
    def in_flight(self) -> int:
        """How many messages are being handled now."""
        return len(self._in_hand)

    async def start(self) -> None:
        """Makes sure that the agent's consumer exists and begins to pull. Raises BrokerError."""
        stream = StreamNames.of(self._connection.settings.namespace).work
        self._pull = PullLoop(
            self._connection,
            stream,
            await self._create(),
            take=self._take,
            room=lambda: self._concurrency - len(self._in_hand),
            missing=self._create_again,
        )
        await self._pull.start()
        self._keep_alive = asyncio.create_task(self._report_progress(), name=f"keep-alive {self._agent}")

    async def drain(self, grace_s: float) -> int:
        """Stops pulling, lets what is in hand finish within `grace_s`, and hands the rest back at once.

        `hurry` ends the grace. Returns how many were handed back. Nothing is lost at any point of it.
        """
        if self._pull is not None:
            await self._pull.stop()
        await self._until_idle_or_hurried(grace_s)
        left = [task for _, task in self._in_hand.values() if task is not None and not task.done()]
        for task in left:
            task.cancel()
        await self._until_idle(STOP_S)
        if self._keep_alive is not None:
            self._keep_alive.cancel()
            await asyncio.gather(self._keep_alive, return_exceptions=True)
        return len(left)

    def hurry(self) -> None:
        """Ends the grace of a drain, now or when it begins; a second call does nothing."""
        self._hurried.set()

    async def _create(self) -> str:
        return await ensure_consumer(self._connection, self._agent)

    async def _create_again(self) -> str:
        self._pipeline.suspect_copies()
        return await self._create()

    async def _until_idle_or_hurried(self, grace_s: float) -> None:
        waits = [asyncio.create_task(self._until_idle(grace_s)), asyncio.create_task(self._hurried.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _until_idle(self, timeout_s: float) -> None:
        if self._in_hand:
            self._idle.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._idle.wait()

    def _take(self, delivery: Delivery) -> None:
        self._in_hand[delivery.reply] = (delivery, None)
        task = asyncio.create_task(self._pipeline.run(delivery, self._ended))
        self._in_hand[delivery.reply] = (delivery, task)

    def _ended(self, delivery: Delivery) -> None:
        self._in_hand.pop(delivery.reply, None)
        if not self._in_hand:
            self._idle.set()
        if self._pull is not None:
            self._pull.wake()

    async def _report_progress(self) -> None:
        """Tells the server that long handlers are alive, so that it does not deliver their messages again."""
        interval_s = self._connection.settings.ack_wait_s / 3
        while True:
            await asyncio.sleep(interval_s)
            for delivery, _ in list(self._in_hand.values()):
                try:
                    await self._connection.publish(delivery.reply, b"+WPI")
                except BusError as problem:
                    log.debug("keep-alive of %s: %s", self._agent, problem.info.message)
