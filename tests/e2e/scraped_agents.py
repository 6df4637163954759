"""An agent to which everything happens that a metric counts: success, a retry, dead letters, a send that fails."""

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
