"""The consumer: one replica's share of an agent's messages, kept alive while they are handled, drained on stop."""

from __future__ import annotations

import asyncio
import logging

from bus.broker.connection import Connection
from bus.broker.pull import Delivery, PullLoop
from bus.broker.streams import StreamNames, ensure_consumer
from bus.delivery.pipeline import Pipeline
from bus.errors import BusError

log = logging.getLogger("bus.delivery")


class Consumer:
    """Pulls for one agent and runs the pipeline for each message, at most `concurrency` at once."""

    def __init__(self, connection: Connection, pipeline: Pipeline, *, agent: str, concurrency: int) -> None:
        self._connection = connection
        self._pipeline = pipeline
        self._agent = agent
        self._concurrency = concurrency
        self._in_hand: dict[asyncio.Task[None], Delivery] = {}
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
            missing=self._create,
        )
        await self._pull.start()
        self._keep_alive = asyncio.create_task(self._report_progress(), name=f"keep-alive {self._agent}")

    async def drain(self, grace_s: float) -> int:
        """Stops pulling, lets what is in hand finish within `grace_s`, and hands the rest back at once.

        Returns how many were handed back. Nothing is lost at any point of it.
        """
        if self._pull is not None:
            await self._pull.stop()
        if self._in_hand:
            await asyncio.wait(self._in_hand, timeout=grace_s)
        left = list(self._in_hand)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=5)
        if self._keep_alive is not None:
            self._keep_alive.cancel()
            await asyncio.gather(self._keep_alive, return_exceptions=True)
        return len(left)

    async def _create(self) -> str:
        return await ensure_consumer(self._connection, self._agent)

    def _take(self, delivery: Delivery) -> None:
        task = asyncio.create_task(self._pipeline.run(delivery), name=f"{self._agent} {delivery.stream_seq}")
        self._in_hand[task] = delivery
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._in_hand.pop(task, None)
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.error("the pipeline of %s failed; the message comes again", self._agent, exc_info=problem)
        if self._pull is not None:
            self._pull.wake()

    async def _report_progress(self) -> None:
        """Tells the server that long handlers are alive, so that it does not deliver their messages again."""
        interval_s = self._connection.settings.ack_wait_s / 3
        while True:
            await asyncio.sleep(interval_s)
            for delivery in list(self._in_hand.values()):
                try:
                    await self._connection.publish(delivery.reply, b"+WPI")
                except BusError as problem:
                    log.debug("keep-alive of %s: %s", self._agent, problem.info.message)
