"""An agent to which everything happens that a metric counts: retries, dead letters, sends and calls that fail."""

from __future__ import annotations

import contextlib
from typing import Any

from bus import Agent, BusError, Message, PermanentFailure, RetryLater

worker = Agent("worker")


@worker.on("job", phase="execute")
async def job(payload: Any, message: Message) -> None:
    if payload["number"] == 0 and message.attempt == 1:
        raise RetryLater(0.1)
    await message.send("worker", "note", payload, phase="review")


@worker.on("note")
def note(payload: Any) -> None:
    if payload["number"] == 1:
        raise PermanentFailure("this one never works")


@worker.on("huge")
async def huge(payload: Any, message: Message) -> None:
    with contextlib.suppress(BusError):
        await message.send("worker", "note", {}, extensions={"x": "a" * 2_000_000})


@worker.capability("number.read", example={"text": "1"})
def read(text: str) -> int:
    """Reads a number."""
    return int(text)


@worker.on("ask")
async def ask(payload: Any, message: Message) -> None:
    for text in ("1", "2", "x"):
        with contextlib.suppress(BusError):
            await message.call("number.read", {"text": text})
