"""Items: what a streaming capability yields, each through gate 2, to a reader or into one list (REG-7)."""

from __future__ import annotations

import contextlib
from typing import Any

import orjson

from bus.calls.call import Call
from bus.calls.capability import Capability
from bus.calls.feed import Feed
from bus.errors import error
from bus.workflow.references import MAX_PAYLOAD_BYTES


async def stream(capability: Capability, admitted: Any, call: Call | None, feed: Feed) -> None:
    """Tells every item as a chunk; what a plain capability returns is one. Left early, the generator is closed."""
    if not capability.card.streaming:
        await feed.chunk(capability.release(await capability.run(admitted, call)))
        return
    async with contextlib.aclosing(capability.items(admitted, call)) as items:
        async for item in items:
            await feed.chunk(capability.release(item))


async def gather(capability: Capability, admitted: Any, call: Call | None) -> list[Any]:
    """All items at once, for who called without reading a stream. Raises `protocol.too_large` over 64 MiB."""
    gathered, size_bytes = [], 0
    async with contextlib.aclosing(capability.items(admitted, call)) as items:
        async for item in items:
            data = capability.release(item)
            gathered.append(data)
            size_bytes += len(orjson.dumps(data))
            if size_bytes > MAX_PAYLOAD_BYTES:
                raise error(
                    "protocol.too_large",
                    f"the items of {capability.card.name} have over {MAX_PAYLOAD_BYTES} bytes; stream the call",
                    size=size_bytes,
                    limit=MAX_PAYLOAD_BYTES,
                )
    return gathered
