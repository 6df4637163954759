"""A clerk who plans parts and scribes who write them, one at a time: agents to kill and to stop."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from bus import Agent, Message, RetryPolicy

PARTS = [f"part{number}" for number in range(8)]
WORK_S = float(os.environ.get("LETTERS_WORK_S", "0.05"))
TTL_S = float(os.environ.get("LETTERS_TTL_S", "2"))

clerk = Agent("clerk")
scribe = Agent("scribe", retry=RetryPolicy(max_attempts=50, base_s=0.1, cap_s=1.0))


@clerk.on("order")
async def plan(_: Any, message: Message) -> None:
    """Plans, ends the phase, orders every part."""
    await message.workflow.enter("plan")
    await message.state.update("plan", lambda _: {"parts": PARTS})
    await message.workflow.leave("plan")
    for part in PARTS:
        await message.send("scribe", "part", {"part": part}, key=part)


@scribe.on("part")
async def write(payload: dict[str, str], message: Message) -> None:
    """Reads, works, writes: two at once would lose a part. The last one says that the letter is ready."""
    part = payload["part"]
    async with message.slot("write", key="letter", limit=1, ttl_s=TTL_S) as slot:
        before = await message.state.read("letter") or {}
        await asyncio.sleep(WORK_S)
        branch = message.workflow.branch
        letter = await message.state.update("letter", lambda _: {**before, part: branch})
        await message.state.update(
            "tokens", lambda known: {"tokens": [*(known or {"tokens": []})["tokens"], slot.token]}
        )
        if len(letter) == len(PARTS):
            await message.send("*", "ready", letter, message_id=f"ready.{message.workflow_id}")
