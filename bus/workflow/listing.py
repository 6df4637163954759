"""The workflows of a bus: how many there are of each status, and the newest of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from bus.broker.connection import Connection
from bus.broker.extent import count_of
from bus.broker.records import Record, Records
from bus.broker.streams import StreamNames, last_seq
from bus.broker.subjects import token
from bus.workflow.record import STATUSES, WorkflowRecord
from bus.workflow.record_store import RecordStore

NEWEST = 50
READS_AT_ONCE = 64
FIRST_LOOK = 512
LEFT_BEHIND = timedelta(minutes=2)
# Longer than the note of an entry lives, and clocks differ.
JUST_NOW = timedelta(seconds=5)
MAX_MATCHING = 5


@dataclass(frozen=True, slots=True)
class Listing:
    """Workflows, those that changed status last first; `counts` is how many there are of each status, as indexed."""

    records: tuple[WorkflowRecord, ...]
    counts: dict[str, int]


async def list_workflows(connection: Connection, *, status: str | None = None, newest: int = NEWEST) -> Listing:
    """The newest workflows of one status, or of each; the counts come from the server. Raises BrokerError.

    Raises ValueError for a status that is none.
    """
    if status is not None and status not in STATUSES:
        raise ValueError(f"{status!r} is not the status of a workflow: {', '.join(STATUSES)}")
    records = Records(connection, StreamNames.of(connection.settings.namespace).workflows)
    counts = {one: await _count(records, f"*.run.{one}") for one in STATUSES}
    wanted = [one for one in STATUSES if counts[one] and status in (None, one)]
    end = await last_seq(connection, records.stream)
    store = RecordStore(connection)
    found: dict[str, WorkflowRecord] = {}
    for one in wanted:
        entries = await _newest(records, one, newest, end)
        for record in await _read(store, entries, one):
            if status in (None, record.status):
                found[record.id] = record
    ordered = sorted(found.values(), key=lambda record: (not record.is_ended, record.updated_at), reverse=True)
    return Listing(tuple(ordered[: newest if status else None]), counts)


async def matching(connection: Connection, beginning: str) -> list[str]:
    """The ids of the workflows with a record whose id begins so, up to five. Raises BrokerError."""
    records = Records(connection, StreamNames.of(connection.settings.namespace).workflows)
    if (await records.read(f"{token(beginning)}.run.record")).value is not None:
        return [beginning]
    begins = token(beginning) if beginning else ""
    keys = sorted(key for key in await records.keys("*.run.record") if key.startswith(begins))
    found = [await records.read(key) for key in keys[:MAX_MATCHING]]
    return [WorkflowRecord.from_wire(one.value, one.revision).id for one in found if one.value is not None]


async def _count(records: Records, pattern: str) -> int:
    """As the server counts, without the notes of what was taken away just now."""
    count = await count_of(records.connection, records.stream, records.subject(pattern))
    if count == 0:
        return 0
    async with records.reader(pattern, since=datetime.now(UTC) - JUST_NOW) as reader:
        async for delivery in reader.until_now():
            _, record = records.entry(delivery)
            count -= record.value is None
    return max(0, count)


async def _newest(records: Records, status: str, newest: int, end: int) -> list[Record]:
    """Read from the end of the stream, further back until there are enough."""
    look = FIRST_LOOK
    while True:
        start = max(1, end - look + 1)
        found: dict[bytes, Record] = {}
        async with records.reader(f"*.run.{status}", start_seq=start) as reader:
            async for delivery in reader.until_now():
                _, record = records.entry(delivery)
                if record.value is not None:
                    found[record.value] = record
        if len(found) >= newest or start == 1:
            return list(found.values())[-newest:][::-1]
        look *= 8


async def _read(store: RecordStore, entries: list[Record], indexed_as: str) -> list[WorkflowRecord]:
    gate = asyncio.Semaphore(READS_AT_ONCE)

    async def read(entry: Record) -> WorkflowRecord | None:
        workflow_id = (entry.value or b"").decode("utf-8", "replace")
        async with gate:
            record = await store.read(workflow_id)
        is_old = entry.written_at is not None and datetime.now(UTC) - entry.written_at > LEFT_BEHIND
        if is_old and (record is None or record.status != indexed_as):
            # Left by a crash between two writes.
            await store.unindex(workflow_id, indexed_as)
        return record

    return [record for record in await asyncio.gather(*map(read, entries)) if record is not None]
