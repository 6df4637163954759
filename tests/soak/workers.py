"""The agents of the soak: a chain of three, each in processes of its own."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from bus import Agent, Message

SHORT_S = 0.002

one = Agent("one", concurrency=8)
two = Agent("two", concurrency=8)
three = Agent("three", concurrency=8)
NEXT = {"one": "two", "two": "three"}

_started = os.open(os.environ.get("SOAK_STARTED", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


@one.on("step")
@two.on("step")
@three.on("step")
async def step(payload: Any, message: Message) -> None:
    """Notes that it began, works a little, passes it on. One short write that appends is never torn apart."""
    agent = message.envelope.to
    os.write(_started, f"{agent} {message.message_id} {message.attempt} {os.getpid()}\n".encode())
    await asyncio.sleep(SHORT_S)
    if agent in NEXT:
        await message.send(NEXT[agent], "step", payload)
