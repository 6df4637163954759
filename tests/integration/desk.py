"""An agent whose long work a test holds in its hands."""

from __future__ import annotations

import asyncio
from typing import Any

from bus import Agent


class Desk:
    """An agent whose work the test holds in its hands: `report.write` waits until it is let go."""

    def __init__(self, name: str = "writer", **options: Any) -> None:
        self.agent = Agent(name, **options)
        self.began = asyncio.Queue[str]()
        self.go = asyncio.Event()
        self.ended: list[str] = []
        self.runs = 0

        @self.agent.capability("report.write", long=True)
        async def write(topic: str) -> str:
            """Writes a report."""
            self.runs += 1
            self.began.put_nowait(topic)
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.ended.append("cancelled")
                raise
            self.ended.append("done")
            return f"all about {topic}"

        @self.agent.capability("report.quick", description="At once.")
        async def quick(topic: str) -> str:
            return topic
