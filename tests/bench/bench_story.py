"""What `Bus.trace` costs: seconds to read and to draw a workflow of 10,000 messages, alone and among 100,000 others.

Run it, it prints a table. The messages are stored as a burst; half of the workflow is handled, half waits.
"""

import asyncio
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bus import Bus, Draft, Envelope, Settings
from bus.broker.store import store
from bus.cli.story import story_lines
from bus.testing import NatsServer
from bus.workflow import completions
from bus.workflow.completions import Completion

MESSAGES = 10_000
OTHERS = 100_000
BATCH = 2_000
BODY = {"text": "x" * 400}


async def fill(bus: Bus, workflow_id: str, count: int) -> list[Envelope]:
    sent: list[Envelope] = []
    for start in range(0, count, BATCH):
        cause = sent[start // 20].message_id if sent else None
        extensions = {} if cause is None else {"causation_id": cause}
        drafts = [Draft("worker", "step", BODY, extensions=extensions) for _ in range(min(BATCH, count - start))]
        sent += await bus.send_many(drafts, workflow_id=workflow_id)
    return sent


async def complete(bus: Bus, sent: list[Envelope]) -> None:
    subject, begin = bus.connection.subjects.done("worker"), 0
    while begin < len(sent):
        group = [
            Completion(one.sender, one.message_id, one.workflow_id, 1, datetime.now(UTC), 1.0)
            for one in sent[begin : begin + 64]
        ]
        await store(bus.connection, subject, completions.encode(group), {}, timeout_s=30)
        begin += 64


async def measure(bus: Bus, name: str, table: Table, workflow_id: str) -> None:
    began = time.perf_counter()
    story = await bus.trace(workflow_id)
    read_s = time.perf_counter() - began
    lines = sum(1 for _ in story_lines(story, width=120))
    drawn_s = time.perf_counter() - began - read_s
    table.add_row(name, f"{len(story.steps):,}", f"{read_s:.2f}", f"{drawn_s:.2f}", f"{lines:,}")


async def main() -> None:
    table = Table("what", "messages", "read, s", "draw, s", "lines", title="bus trace")
    with tempfile.TemporaryDirectory() as folder, NatsServer(Path(folder)) as server:
        async with Bus.connect("bench", settings=Settings.load(servers=server.url)) as bus:
            handled = bus.workflow("handled").id
            await complete(bus, await fill(bus, handled, MESSAGES))
            await measure(bus, "all handled", table, handled)
            waiting = bus.workflow("waiting").id
            await complete(bus, (await fill(bus, waiting, MESSAGES))[: MESSAGES // 2])
            await measure(bus, "half handled", table, waiting)
            small = bus.workflow("small").id
            await complete(bus, await fill(bus, small, 10))
            await fill(bus, bus.workflow("others").id, OTHERS)
            await measure(bus, f"before {OTHERS:,} others", table, small)
            await measure(bus, f"all handled, before {OTHERS + MESSAGES:,} others", table, handled)
    Console().print(table)


if __name__ == "__main__":
    asyncio.run(main())
