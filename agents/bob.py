"""bob: an agent that repeats what it is told.

bus run agents.bob:bob
bus call echo.repeat '{"text": "hi", "times": 2}'
bus call echo.spell '{"text": "hi"}' --stream
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from pydantic import BaseModel, Field

from bus import Agent

bob = Agent("bob")


class Echo(BaseModel):
    """The text that came back."""

    text: str


@bob.capability("echo.repeat", example={"text": "hi", "times": 2}, idempotent=True, timeout_s=5)
async def repeat(text: Annotated[str, Field(max_length=1000)], times: Annotated[int, Field(ge=1, le=100)] = 1) -> Echo:
    """Repeats a text."""
    return Echo(text=" ".join([text] * times))


@bob.capability("echo.spell", example={"text": "hi", "pause_s": 0}, timeout_s=60)
async def spell(
    text: Annotated[str, Field(max_length=1000)], pause_s: Annotated[float, Field(ge=0, le=1)] = 0.1
) -> AsyncIterator[str]:
    """Spells a text, one character at a time."""
    for character in text:
        yield character
        await asyncio.sleep(pause_s)
