"""Watches an agent's queue for the metrics: asks the server now and then, and remembers the answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from bus.broker.connection import Connection
from bus.broker.depth import LaneDepth, lane_depths
from bus.broker.lanes import Lane
from bus.broker.survey import agent_queues, is_unattended
from bus.broker.tasks import end
from bus.errors import BusError
from bus.telemetry.instruments import Kind, Labels, Metric

log = logging.getLogger("bus.delivery")

ANSWER_S = 5.0
# Who is down cannot report its own queue, so every replica looks at those that nobody reads; that asks for more.
ROUNDS_PER_LOOK_AROUND = 4
MAX_UNATTENDED = 100


class QueueWatch:
    """One replica's view of its agent's queue; `lanes` and `in_flight` say what that replica has.

    Reading asks nobody. When the server does not answer, what it said last is not repeated: a stale depth looks
    like a calm one.
    """

    def __init__(
        self,
        connection: Connection,
        agent: str,
        *,
        lanes: Callable[[], Sequence[Lane]],
        in_flight: Callable[[], int],
        concurrency: int,
    ) -> None:
        self._connection = connection
        self._agent = agent
        self._lanes = lanes
        self._in_flight = in_flight
        self._concurrency = concurrency
        self._interval_s = connection.settings.metrics_interval_s
        self._depths: list[LaneDepth] | None = None
        self._unattended: dict[str, int] = {}
        self._asked_at = float("-inf")
        self._round = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to ask, at once and then every `metrics_interval_s`."""
        self._task = asyncio.create_task(self._run(), name=f"queue metrics of {self._agent}")

    async def stop(self) -> None:
        """Stops asking; bounded; a second call does nothing."""
        task, self._task = self._task, None
        await end(task)

    def read(self) -> Iterator[Metric]:
        """The gauges, from any thread."""
        agent: Labels = (("bus.agent", self._agent),)
        yield Metric("bus.in_flight", Kind.GAUGE, "{message}", "Messages in hand here", {agent: self._in_flight()})
        yield Metric(
            "bus.in_flight.limit", Kind.GAUGE, "{message}", "Messages in hand here at most", {agent: self._concurrency}
        )
        # Older than two questions: the task that asks does not get to run, which is as bad.
        age_s = time.monotonic() - self._asked_at
        depths = self._depths if age_s < 2 * self._interval_s + ANSWER_S else None
        yield Metric(
            "bus.broker.connected",
            Kind.GAUGE,
            "1",
            "Whether the broker answered last",
            {agent: int(depths is not None)},
        )
        if depths is None:
            return
        yield Metric(
            "bus.queue.unattended", Kind.GAUGE, "{message}",
            "Messages that wait for an agent that nobody runs; 0 for the agent that tells it",
            {agent: 0} | {(("bus.agent", name),): count for name, count in self._unattended.items()},
        )  # fmt: skip
        now = datetime.now(UTC)
        lanes = [((*agent, ("bus.lane", depth.lane)), depth) for depth in depths]
        yield Metric(
            "bus.queue.depth", Kind.GAUGE, "{message}", "Messages that wait for the agent, all replicas together",
            {labels: depth.waiting for labels, depth in lanes},
        )  # fmt: skip
        yield Metric(
            "bus.queue.in_flight", Kind.GAUGE, "{message}", "Messages delivered and not settled, all replicas together",
            {labels: depth.in_flight for labels, depth in lanes},
        )  # fmt: skip
        yield Metric(
            "bus.queue.oldest_age", Kind.GAUGE, "s", "Since when the oldest message that is not settled is stored",
            {
                labels: max(0.0, (now - depth.oldest_at).total_seconds()) if depth.oldest_at is not None else 0.0
                for labels, depth in lanes
            },
        )  # fmt: skip

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(ANSWER_S):
                    self._depths = await lane_depths(self._connection, self._lanes())
                    if self._round % ROUNDS_PER_LOOK_AROUND == 0:
                        self._unattended = await self._look_around()
                self._round += 1
            except (BusError, TimeoutError) as problem:
                self._depths, self._round = None, 0
                log.debug("queue metrics of %s: %s", self._agent, problem or "no answer")
            self._asked_at = time.monotonic()
            await asyncio.sleep(self._interval_s)

    async def _look_around(self) -> dict[str, int]:
        queues = [one for one in await agent_queues(self._connection) if is_unattended(one)]
        return {one.agent: one.waiting for one in queues[:MAX_UNATTENDED] if one.agent != self._agent}
