"""How fast workflows change state, and how long a list takes when 100,000 have ended (WF-3).

python tests/bench/bench_workflow.py [FINISHED]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

from bus import Bus
from bus.broker.records import Records
from bus.broker.streams import StreamNames
from bus.envelope import new_message_id
from bus.testing import NatsServer
from bus.workflow.handle import WorkflowHandle
from bus.workflow.listing import JUST_NOW, list_workflows, matching
from bus.workflow.record import By, WorkflowRecord
from bus.workflow.record_store import RecordStore, record_key, status_key

FINISHED = 100_000
WORKFLOWS = 32
EACH = 300


async def seed(bus: Bus, count: int) -> list[str]:
    """Writes records of finished workflows as they are left behind."""
    records = Records(bus.connection, StreamNames.of(bus.connection.settings.namespace).workflows)
    ids = [new_message_id() for _ in range(count)]
    left = iter(ids)
    by = By("bench", datetime.now(UTC))

    async def work() -> None:
        for one in left:
            record = WorkflowRecord.begun(one, "brief", by).entered("plan", by).left("plan", by).ended("success", by)
            await records.write(status_key(one, "success"), one.encode(), after=0)
            await records.write(record_key(one), record.to_wire(), after=0)

    await asyncio.gather(*(work() for _ in range(64)))
    return ids


async def transitions(bus: Bus) -> None:
    """Phases that begin and end, in 32 workflows at once."""
    store = RecordStore(bus.connection)
    begun = [
        await store.begin(lambda by: WorkflowRecord.begun(new_message_id(), "bench", by), goes_on=False)
        for _ in range(WORKFLOWS)
    ]

    def step(number: int) -> Callable[[WorkflowRecord, By], WorkflowRecord]:
        return lambda record, by: record.left("plan", by) if number % 2 else record.entered("plan", by)

    async def knowing(record: WorkflowRecord) -> None:
        for number in range(EACH):
            record = await store.change_from(record, step(number))

    async def reading(record: WorkflowRecord) -> None:
        for number in range(EACH):
            await store.change(record.id, step(number))

    for name, run in (("from a known revision", knowing), ("read, then written", reading)):
        began = time.perf_counter()
        await asyncio.gather(*map(run, begun))
        took = time.perf_counter() - began
        print(f"transitions, {WORKFLOWS} workflows at once, {name}: {WORKFLOWS * EACH / took:,.0f} a second")


async def slots(bus: Bus) -> None:
    """A slot taken, a document written under it, given back."""
    handles = [WorkflowHandle(bus.connection, f"s{n}", branch=0, writer="bench") for n in range(WORKFLOWS)]

    async def use(handle: WorkflowHandle) -> None:
        for n in range(30):
            async with handle.slot("draft"):
                await handle.state.update("text", lambda _, n=n: {"n": n})  # type: ignore[misc]

    began = time.perf_counter()
    await asyncio.gather(*map(use, handles))
    print(f"slots taken, written under and given back: {WORKFLOWS * 30 / (time.perf_counter() - began):,.0f} a second")


async def timed(what: str, ask: Callable[[], Awaitable[object]]) -> None:
    """Runs it five times and prints the median."""
    took = []
    for _ in range(5):
        began = time.perf_counter()
        await ask()
        took.append(time.perf_counter() - began)
    print(f"{what}: {sorted(took)[2] * 1000:,.0f} ms")


async def main(finished: int) -> None:
    """Measures on a server of its own."""
    with tempfile.TemporaryDirectory() as folder, NatsServer(Path(folder)) as server:
        async with Bus.connect("bench", servers=server.url, namespace="bench") as bus:
            await transitions(bus)
            await slots(bus)
            ids = await seed(bus, finished)
            await asyncio.sleep(JUST_NOW.total_seconds())
            print(f"with {finished:,} finished workflows:")
            await timed("  list, the newest 50 of each status", lambda: list_workflows(bus.connection))
            await timed("  list, status error", lambda: list_workflows(bus.connection, status="error"))
            await timed("  find one by its whole id", lambda: matching(bus.connection, ids[7]))
            await timed("  find one by the beginning of its id", lambda: matching(bus.connection, ids[7][:-2]))
            await transitions(bus)


asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else FINISHED))
