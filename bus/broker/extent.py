"""Extent: how many messages of a kind a stream has, and how far back it still goes."""

from __future__ import annotations

from datetime import UTC, datetime

import nats.js.errors

from bus.broker.connection import Connection
from bus.broker.streams import ensure_reader, stream_state
from bus.broker.translate import translated


async def count_of(connection: Connection, stream: str, pattern: str) -> int:
    """How many messages of a stream fit a pattern, counted by the server. Raises BrokerError."""
    name, count = await ensure_reader(connection, stream, subjects=[pattern], start_seq=1)
    await connection.publish(f"$JS.API.CONSUMER.DELETE.{stream}.{name}", b"")
    return count


async def kept_since(connection: Connection, stream: str) -> datetime | None:
    """When the oldest message was stored that a stream still has, if it has let older ones go; else None."""
    state = await stream_state(connection, stream)
    if state.first_seq <= 1 or not state.messages:
        return datetime.now(UTC) if state.first_seq > 1 else None
    with translated(f"look at the stream {stream}"):
        try:
            return (await connection.jetstream().get_msg(stream, seq=state.first_seq)).time
        except nats.js.errors.NotFoundError:
            return datetime.now(UTC)
