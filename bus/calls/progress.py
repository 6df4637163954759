"""Progress of an ordinary call: what its callee tells on the way, and then its result (REG-7)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson

from bus.broker.connection import Connection
from bus.broker.parser import Arrival
from bus.broker.tasks import end
from bus.calls.records import Told
from bus.contracts.result import Result

QUEUE = 256

OnProgress = Callable[[float, str], Any]
"""Hears how much is done, from 0 to 1, and a message; may be async. What it raises ends the call."""


async def tell_progress(on_progress: OnProgress, payload: Mapping[str, Any]) -> None:
    """Passes on what a `status_update` says."""
    heard = on_progress(payload.get("progress", 0.0), payload.get("message", ""))
    if inspect.isawaitable(heard):
        await heard


async def with_progress(
    connection: Connection, call_id: str, ask: Callable[[], Awaitable[Result]], on_progress: OnProgress
) -> Result:
    """Awaits `ask()` and meanwhile passes on its progress; of more than 256 words that wait the oldest are dropped."""
    told: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()

    def take(message: Arrival) -> None:
        try:
            fields = orjson.loads(message.data)
            if fields["type"] == Told.STATUS and isinstance(fields["payload"], dict):
                if told.qsize() >= QUEUE:
                    told.get_nowait()
                told.put_nowait(fields["payload"])
        except (ValueError, KeyError, TypeError):
            return  # Somebody else's; progress is a courtesy.

    subscription = await connection.subscribe(connection.subjects.stream_of(call_id), take)
    asking = asyncio.ensure_future(ask())
    asking.add_done_callback(lambda _: told.put_nowait(None))
    try:
        while (payload := await told.get()) is not None:
            await tell_progress(on_progress, payload)
        return await asking
    finally:
        await end(asking)
        await subscription.drain()
