"""The consumer: one replica's share of an agent's messages, kept alive while they are handled, drained on stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Coroutine
from typing import Any

import orjson

from bus.broker.connection import Connection
from bus.broker.laned_pull import LanedPull
from bus.broker.lanes import BROADCASTS, NORMAL, Lane, LaneWatch, ensure_lane, lane
from bus.broker.pull import Delivery, PullLoop
from bus.broker.subjects import DUE
from bus.broker.tasks import end
from bus.delivery.holding import Holding
from bus.delivery.pipeline import Pipeline
from bus.delivery.workers import Workers
from bus.envelope import Envelope
from bus.errors import BusError, Rejected
from bus.workflow.control import Control

log = logging.getLogger("bus.delivery")

STOP_S = 5.0


class Consumer:
    """Pulls for one agent and runs the pipeline for each message, at most `concurrency` at once over all lanes.

    An agent that needs one lane only has the fast pull; the first message on another lane, or a handler of
    broadcasts, makes it change to the pull by lanes (decision 4). `only` names the one lane of a consumer that takes
    nothing else.
    """

    def __init__(
        self,
        connection: Connection,
        pipeline: Pipeline,
        *,
        agent: str,
        concurrency: int,
        holding: Holding,
        broadcasts: Collection[str] = (),
        only: str | None = None,
    ) -> None:
        self._connection = connection
        self._pipeline = pipeline
        self._agent = agent
        self._concurrency = concurrency
        self._holding = holding
        self._broadcasts = sorted(broadcasts)
        self._own_broadcasts = connection.subjects.events_from(agent)
        self._in_hand: dict[str, Delivery] = {}
        self._workers = Workers(self._run, lost=self._ended, limit=concurrency, name=agent)
        self._idle = asyncio.Event()
        self._hurried = asyncio.Event()
        self._normal = lane(connection, agent, only or NORMAL)
        self._lanes = {self._normal.name: self._normal}
        self._pull: PullLoop | None = None
        self._by_lanes = LanedPull(connection, take=self._take_of, room=self._room, missing=pipeline.suspect_copies)
        self._is_by_lanes = False
        self._watch = LaneWatch(connection, agent, needed=self._open) if only is None else None
        self._widening: asyncio.Task[None] | None = None
        self._keep_alive: asyncio.Task[None] | None = None

    @property
    def in_flight(self) -> int:
        """How many messages are being handled now."""
        return len(self._in_hand)

    @property
    def lanes(self) -> list[Lane]:
        """The lanes that it takes from."""
        return list(self._lanes.values())

    async def start(self) -> None:
        """Makes sure that the agent's consumers exist and begins to pull. Raises BrokerError."""
        # First, because it used to take every lane, and consumers of a work queue must not overlap.
        await ensure_lane(self._connection, self._normal)
        self._by_lanes.add(self._normal)
        if self._broadcasts:
            await self._start_broadcasts()
        if self._watch is not None:
            await self._watch.start()
        self._connection.on_reconnect(self._leave_waiting)
        if self._is_by_lanes:
            await self._by_lanes.start()
        else:
            self._pull = PullLoop(
                self._connection,
                self._normal.stream,
                self._normal.consumer,
                take=self._take,
                room=self._room,
                missing=self._create_again,
            )
            await self._pull.start()
        self._keep_alive = self._connection.tasks.start(self._report_progress(), name=f"keep-alive {self._agent}")

    async def drain(self, grace_s: float) -> int:
        """Stops pulling, lets what is in hand finish within `grace_s`, and hands the rest back at once.

        `hurry` ends the grace. Returns how many were handed back. Nothing is lost at any point of it.
        """
        if self._watch is not None:
            await self._watch.stop()
        if self._widening is not None:
            await self._widening
        if self._pull is not None:
            await self._pull.stop()
        await self._by_lanes.stop()
        await self._until_idle_or_hurried(grace_s)
        self._connection.remove_listener(self._leave_waiting)
        waiting = self._workers.take_back()
        left = self._workers.cancel() + len(waiting)
        for delivery in waiting:
            await self._pipeline.hand_back(delivery)
            self._ended(delivery)
        await self._until_idle(STOP_S)
        self._workers.close()
        await end(self._keep_alive)
        return left

    def hurry(self) -> None:
        """Ends the grace of a drain, now or when it begins; a second call does nothing."""
        self._hurried.set()

    def decided(self, workflow_id: str, control: Control) -> None:
        """Hears what was decided about a workflow; what it runs against that is cancelled and handed back."""
        needle = orjson.dumps(workflow_id)[1:-1]

        def is_set_aside(delivery: Delivery) -> bool:
            if needle not in delivery.data:
                return False
            with contextlib.suppress(Rejected):
                envelope = Envelope.decode(delivery.data)
                return envelope.workflow_id == workflow_id and control.verdict(envelope) is not None
            return False

        if cancelled := self._workers.cancel_some(is_set_aside):
            log.info("%s cancelled %d messages of workflow %s", self._agent, cancelled, workflow_id)

    async def _start_broadcasts(self) -> None:
        subjects = [self._connection.subjects.events_of(type) for type in self._broadcasts]
        asked_for = lane(self._connection, self._agent, BROADCASTS, subjects)
        # Now, not at the first pull: a new agent gets what is broadcast after it has started.
        await ensure_lane(self._connection, asked_for)
        self._open(asked_for)

    def _open(self, needed: Lane) -> None:
        self._lanes[needed.name] = needed
        self._by_lanes.add(needed)
        self._is_by_lanes = True
        if self._pull is not None and self._widening is None:
            self._widening = self._connection.tasks.start(self._widen(self._pull), name=f"open lanes of {self._agent}")

    async def _widen(self, pull: PullLoop) -> None:
        await pull.stop()
        await self._by_lanes.start()

    def _room(self) -> int:
        return self._concurrency - len(self._in_hand)

    async def _create_again(self) -> str:
        # First, because a consumer that is made again delivers what is in hand once more, as if for the first time.
        self._pipeline.suspect_copies()
        await ensure_lane(self._connection, self._normal)
        return self._normal.consumer

    async def _until_idle_or_hurried(self, grace_s: float) -> None:
        waits = [asyncio.create_task(self._until_idle(grace_s)), asyncio.create_task(self._hurried.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(*waits)

    async def _until_idle(self, timeout_s: float) -> None:
        if self._in_hand:
            self._idle.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._idle.wait()

    def _take(self, delivery: Delivery) -> None:
        self._in_hand[delivery.reply] = delivery
        self._workers.put(delivery)

    def _run(self, delivery: Delivery) -> Coroutine[Any, Any, None]:
        if self._broadcasts and delivery.subject.startswith(self._own_broadcasts):
            return self._skip(delivery)
        if self._holding.concerns(delivery):
            return self._hold_or_run(delivery)
        return self._pipeline.run(delivery, self._ended)

    async def _hold_or_run(self, delivery: Delivery) -> None:
        is_held = True
        try:
            is_held = await self._holding.takes(delivery)
        except asyncio.CancelledError:
            await self._pipeline.hand_back(delivery)
            raise
        except BusError as problem:
            log.warning("a message to %s comes again after its ack wait: %s", self._agent, problem.info.message)
        finally:
            if is_held:
                self._ended(delivery)
        if not is_held:
            await self._pipeline.run(delivery, self._ended)

    def _take_of(self, lane: Lane, delivery: Delivery) -> None:
        if lane.name == DUE:
            delivery = _as_scheduled(delivery)
        self._take(delivery)

    def _leave_waiting(self) -> None:
        # A broker that was killed gives them to others, who cannot hear of them: this replica has not claimed them yet.
        for delivery in self._workers.take_back():
            self._ended(delivery)

    async def _skip(self, delivery: Delivery) -> None:
        try:
            await self._connection.publish(delivery.reply, b"+ACK")
        except BusError as problem:
            log.debug("an own broadcast comes again: %s", problem.info.message)
        finally:
            self._ended(delivery)

    def _ended(self, delivery: Delivery) -> None:
        self._in_hand.pop(delivery.reply, None)
        if not self._in_hand:
            self._idle.set()
        if self._is_by_lanes:
            self._by_lanes.ended(delivery)
        elif self._pull is not None:
            self._pull.wake()

    async def _report_progress(self) -> None:
        """Tells the server that long handlers are alive, so that it does not deliver their messages again."""
        interval_s = self._connection.settings.ack_wait_s / 3
        while True:
            before = time.monotonic()
            await asyncio.sleep(interval_s)
            late_s = time.monotonic() - before - interval_s
            if late_s > interval_s:
                log.warning(
                    "the event loop of %s was blocked for %.1f s, so its messages may run elsewhere too; "
                    "an async handler must not block: make it a plain def",
                    self._agent,
                    late_s,
                )
            for delivery in list(self._in_hand.values()):
                try:
                    await self._connection.publish(delivery.reply, b"+WPI")
                except BusError as problem:
                    log.debug("keep-alive of %s: %s", self._agent, problem.info.message)


def _as_scheduled(delivery: Delivery) -> Delivery:
    """A due message under the name of who scheduled it.

    Who may schedule under an own name could aim at a subject with another one: the broker checks the subject that is
    published to, not the one in a header. The broker itself writes where a due message comes from.
    """
    scheduler, tokens = delivery.headers.get("Nats-Scheduler"), delivery.subject.split(".")
    if scheduler is None or scheduler.split(".")[4:5] == tokens[4:5]:
        return delivery
    tokens[4] = "="
    return delivery._replace(subject=".".join(tokens))
