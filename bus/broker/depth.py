"""How deep the queue of one agent is: what the server says of its lanes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import nats.js.errors

from bus.broker.connection import Connection
from bus.broker.lanes import BROADCASTS, Lane
from bus.broker.translate import translated


@dataclass(frozen=True, slots=True)
class LaneDepth:
    """One lane: how many wait, how many are in flight over all replicas, and since when the oldest is there.

    `oldest_at` is None when the lane is empty, and for broadcasts, which stay in their stream after they are handled.
    """

    lane: str
    waiting: int
    in_flight: int
    oldest_at: datetime | None


async def lane_depths(connection: Connection, lanes: Iterable[Lane]) -> list[LaneDepth]:
    """Asks the server about some lanes of an agent, one or two requests each. Raises BrokerError."""
    return [await _depth(connection, lane) for lane in lanes]


async def _depth(connection: Connection, lane: Lane) -> LaneDepth:
    with translated(f"look at the queue {lane.consumer}"):
        try:
            found = await connection.jetstream().consumer_info(lane.stream, lane.consumer)
        except nats.js.errors.NotFoundError:
            return LaneDepth(lane.name, 0, 0, None)
        waiting, in_flight = found.num_pending or 0, found.num_ack_pending or 0
        oldest_at = None
        if lane.name != BROADCASTS and waiting + in_flight:
            oldest_at = await _oldest_at(connection, lane)
        return LaneDepth(lane.name, waiting, in_flight, oldest_at)


async def _oldest_at(connection: Connection, lane: Lane) -> datetime | None:
    found = []
    for subject in lane.subjects:
        try:
            message = await connection.jetstream().get_msg(lane.stream, seq=1, subject=subject, next=True)
        except nats.js.errors.NotFoundError:
            continue
        found.append(message.time or datetime.now(UTC))
    return min(found, default=None)
