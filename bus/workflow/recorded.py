"""Reads the records of one workflow from the streams.

The history has no subject for a workflow, so it is read from the time in the id on; a message is parsed only when the
id stands somewhere in its bytes. Read in the order in which a message moves, so that none is missed on its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta

import orjson

from bus.broker.connection import Connection
from bus.broker.held import Held
from bus.broker.lanes import lane
from bus.broker.messages import get_message
from bus.broker.pull import Delivery
from bus.broker.reader import StreamReader
from bus.broker.records import Records as KeyValues
from bus.broker.streams import StreamNames, stream_state
from bus.broker.subjects import token
from bus.broker.survey import agent_queues, delayed_messages, delivered_up_to
from bus.envelope import Envelope
from bus.errors import Rejected
from bus.workflow.records import Copy, Death, Key, Place, Records, attempts_of

CLOCK_MARGIN = timedelta(minutes=2)
EPOCH = datetime.fromtimestamp(0, UTC)
# A workflow with nothing open that was quiet for so long is taken to be over.
QUIET = timedelta(hours=1)
MAX_LOOKS = 20_000
LOOKS_AT_ONCE = 64
MAX_DELAYED = 1_000
MAX_FOUND = 50_000

_WORKFLOW_ID = re.compile(rb'"workflow_id" ?: ?"([^"\\]{1,512})"')


async def read_records(
    connection: Connection, workflow_id: str, *, since: datetime | None = None, quiet: timedelta = QUIET
) -> Records:
    """Everything that is kept of a workflow, from `since` on; else from the time in its id.

    The history is left once the workflow has nothing open and was quiet for `quiet`. Raises BrokerError.
    """
    since = since or begin(workflow_id)
    names, subjects = StreamNames.of(connection.settings.namespace), connection.subjects
    records = Records(workflow_id, datetime.now(UTC))
    done = _Log(connection, names.done, subjects.done_all, workflow_id, since)
    dead = _Log(connection, names.dead, subjects.dead_all, workflow_id, since)
    events = _Log(connection, names.events, subjects.event("*", workflow_id, "*"), workflow_id, since)
    if await has_decisions(connection, workflow_id):
        quiet = timedelta.max  # What was paused may have rested for days.
    settled = _Settled(connection, records, done, dead, quiet)
    await settled.learn()
    async for delivery in events.read():
        _add(records, "event", delivery)
    history = _Log(connection, names.history, subjects.history_all, workflow_id, since)
    async for delivery in history.read(stop_after=settled.is_over):
        _add(records, "work", delivery)
    if history.stopped_at is not None:
        left_at = history.stopped_at.isoformat(timespec="seconds")
        records.notes.append(f"nothing was open, and what was stored after {left_at} was not read")
    await _add_delayed(connection, records)
    records.standing, records.unlooked = await _standing(connection, settled.open_copies())
    records.held = await _parked(connection, workflow_id)
    await settled.learn()
    records.replicas = {queue.agent: queue.replicas for queue in await agent_queues(connection)}
    records.read_at = datetime.now(UTC)
    return records


async def find_workflows(connection: Connection, *, since: datetime | None = None) -> list[str]:
    """The ids of all workflows in the history, the newest last; at most 50,000. Raises BrokerError."""
    names, subjects = StreamNames.of(connection.settings.namespace), connection.subjects
    found: dict[str, None] = {}
    for stream, subject in ((names.history, subjects.history_all), (names.events, subjects.event_all)):
        async with StreamReader(connection, stream, subjects=[subject], start_time=since or EPOCH) as reader:
            async for delivery in reader.until_now():
                for match in _WORKFLOW_ID.finditer(delivery.data):
                    found[match[1].decode("utf-8", "replace")] = None
                if len(found) > MAX_FOUND:
                    del found[next(iter(found))]
    return list(found)


def begin(workflow_id: str) -> datetime:
    """The time in a UUIDv7, less a margin for clocks that differ; the beginning of time for other ids."""
    try:
        parsed = uuid.UUID(workflow_id)
    except ValueError:
        return EPOCH
    if parsed.version != 7:
        return EPOCH
    try:
        return datetime.fromtimestamp((parsed.int >> 80) / 1000, UTC) - CLOCK_MARGIN
    except (OverflowError, ValueError):
        return EPOCH


class _Log:
    """One stream, read as far as it goes, and on from there at the next call; only what may be of the workflow."""

    def __init__(self, connection: Connection, stream: str, subject: str, workflow_id: str, since: datetime) -> None:
        self._connection = connection
        self._stream = stream
        self._subject = subject
        self._since = since
        self._needle = orjson.dumps(workflow_id)[1:-1]
        self._next_seq: int | None = None
        self.stopped_at: datetime | None = None

    async def read(self, *, stop_after: Callable[[datetime], Awaitable[bool]] | None = None) -> AsyncIterator[Delivery]:
        reader = StreamReader(
            self._connection,
            self._stream,
            subjects=[self._subject],
            start_seq=self._next_seq,
            start_time=self._since,
        )
        async with reader:
            async for delivery in reader.until_now():
                self._next_seq = delivery.stream_seq + 1
                if self._needle in delivery.data or _may_hide_it(delivery):
                    yield delivery
                elif stop_after is not None and await stop_after(delivery.stored_at):
                    self.stopped_at = delivery.stored_at
                    return


def _may_hide_it(delivery: Delivery) -> bool:
    # Whoever writes `\u0061` for `a`, or `\/` for `/`, means the same; a dead letter may keep its bytes elsewhere.
    return b"\\u" in delivery.data or b"\\/" in delivery.data or "Bus-Dead-Object" in delivery.headers


class _Settled:
    """What is known to have ended, and so whether anything can still come."""

    def __init__(self, connection: Connection, records: Records, done: _Log, dead: _Log, quiet: timedelta) -> None:
        self._connection = connection
        self._records = records
        self._done = done
        self._dead = dead
        self._quiet = quiet
        self._handled: set[Key] = set()
        self._died: set[Place] = set()
        self._quiet_since: datetime | None = None

    async def learn(self) -> None:
        """Reads the dead letters and the completions, or what has come since."""
        records = self._records
        async for delivery in self._dead.read():
            if (death := Death.of(delivery)) is not None:
                records.deaths.append(death)
                self._died.add(death.place)
                self._sign(delivery.stored_at)
        async for delivery in self._done.read():
            try:
                attempts = list(attempts_of(delivery, records.workflow_id))
            except ValueError:
                continue  # the replicas that read it say so in their logs
            records.attempts += attempts
            self._handled.update(one.key for one in attempts if one.error is None)
            self._sign(delivery.stored_at)

    def open_copies(self) -> list[Copy]:
        """The copies that no record settles."""
        return [
            copy
            for copy in self._records.copies
            if copy.kind == "work" and copy.key not in self._handled and copy.place not in self._died
        ]

    async def is_over(self, now: datetime) -> bool:
        """Whether the history may be left at `now`: no sign for that long, and nothing open."""
        copies = self._records.copies
        if not copies:
            return False
        last = max(copies[-1].stored_at, self._quiet_since or EPOCH)
        if now - last < self._quiet:
            return False
        self._sign(now)  # ask once in that time of the stream, not for every message
        standing, unlooked = await _standing(self._connection, self.open_copies())
        return not standing and not unlooked

    def _sign(self, at: datetime) -> None:
        self._quiet_since = max(at, self._quiet_since or EPOCH)


def _add(records: Records, kind: str, delivery: Delivery) -> None:
    try:
        envelope = Envelope.decode(delivery.data)
    except Rejected:
        return  # names no workflow; its dead letter is in `bus dead ls`
    if envelope.workflow_id == records.workflow_id:
        records.copies.append(Copy.of(kind, delivery, envelope))


async def has_decisions(connection: Connection, workflow_id: str) -> bool:
    """Whether anybody has decided anything about a workflow. Raises BrokerError."""
    bucket = KeyValues(connection, StreamNames.of(connection.settings.namespace).workflows)
    return await bucket.newest(f"{token(workflow_id)}.control.>") > 0


async def _parked(connection: Connection, workflow_id: str) -> dict[Key, Held]:
    names, subjects = StreamNames.of(connection.settings.namespace), connection.subjects
    pattern = subjects.held("*", token(workflow_id), "*", "*")
    found: dict[Key, Held] = {}
    async with StreamReader(connection, names.held, subjects=[pattern], start_seq=1) as reader:
        async for delivery in reader.until_now():
            held = Held.of(delivery)
            if held is not None:
                with contextlib.suppress(Rejected):
                    envelope = Envelope.decode(held.data)
                    found[Key(held.agent, held.subject.split(".")[5], envelope.message_id)] = held
    return found


async def _add_delayed(connection: Connection, records: Records) -> None:
    looked = 0
    async for message in delayed_messages(connection):
        if looked == MAX_DELAYED:
            records.notes.append(f"only {MAX_DELAYED} of the delayed messages were looked at")
            return
        looked += 1
        try:
            envelope = Envelope.decode(message.data)
        except Rejected:
            continue
        if envelope.workflow_id == records.workflow_id:
            tokens = [*message.subject.split("."), "", ""]
            key = Key(tokens[3], tokens[4], envelope.message_id)
            place = Place("later", message.stream_seq)
            records.copies.append(Copy(key, place, "work", "later", envelope, message.stored_at, None, True))


async def _standing(connection: Connection, copies: Iterable[Copy]) -> tuple[dict[Place, bool], frozenset[Place]]:
    """Which copies are still in their stream, and whether they were delivered; and those that were not looked at."""
    names = StreamNames.of(connection.settings.namespace)
    streams = {"work": names.work, "later": names.later}
    standing: dict[Place, bool] = {}
    asked: list[Copy] = []
    waiting = list(copies)
    if not waiting:
        return {}, frozenset()
    first = {"work": (await stream_state(connection, names.work)).first_seq}
    for copy in waiting:
        if copy.is_delayed:
            standing[copy.place] = False
        elif copy.place.seq >= first.get(copy.place.stream, 1):
            asked.append(copy)
    looked, unlooked = asked[:MAX_LOOKS], asked[MAX_LOOKS:]
    delivered = await delivered_up_to(connection)
    gate = asyncio.Semaphore(LOOKS_AT_ONCE)

    async def look(copy: Copy) -> None:
        async with gate:
            found = await get_message(connection, streams[copy.place.stream], copy.place.seq)
        if found is not None:
            one = lane(connection, copy.key.agent, copy.lane)
            standing[copy.place] = copy.place.seq <= delivered.get((one.stream, one.consumer), 0)

    try:
        async with asyncio.TaskGroup() as group:
            for copy in looked:
                group.create_task(look(copy))
    except BaseExceptionGroup as problems:
        raise problems.exceptions[0] from None
    return standing, frozenset(copy.place for copy in unlooked)
