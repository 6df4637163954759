"""Planner, writer and reviewer of the example, with one retry and one dead letter forced into their workflow."""

from __future__ import annotations

from agents.planner import planner
from agents.reviewer import reviewer
from agents.writer import writer
from bus import Message, RetryLater
from bus.delivery.handler import CallNext

__all__ = ["planner", "reviewer", "writer"]


async def _fails_once(message: Message, call_next: CallNext) -> None:
    if message.type == "draft_request" and message.payload["theme"]["index"] == 0 and message.attempt == 1:
        raise RetryLater(0.1, "the first draft fails once")
    await call_next(message)


async def _asks_for_nonsense(message: Message, call_next: CallNext) -> None:
    if message.type == "review_request" and message.payload["index"] == 0 and message.payload["round"] == 0:
        await message.send("writer", "nonsense", {}, key="nonsense")
    await call_next(message)


writer.middleware = (_fails_once,)
reviewer.middleware = (_asks_for_nonsense,)
