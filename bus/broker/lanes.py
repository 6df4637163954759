"""Lanes: the consumers of one agent, made when they are first needed.

Every agent has the lane `normal`. The others (high, low, the key lanes, due, stray) get their consumer when a message
is there for them: most agents never need one, and an idle consumer costs the server memory and timers. A broadcast
lane exists for agents that ask for broadcasts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from bus.broker.connection import Connection, Subscription
from bus.broker.parser import Arrival
from bus.broker.streams import MAX_ACK_PENDING, StreamNames, ensure_consumer, subjects_with_messages
from bus.broker.subjects import DUE, KEY_LANES, LANES, TASK, is_key_lane
from bus.broker.tasks import end
from bus.errors import BusError

log = logging.getLogger("bus.broker")

NORMAL = "normal"
STRAY = "stray"
BROADCASTS = "broadcasts"
# Not allowed in an agent's name, so that no lane's consumer is another agent's.
SEPARATOR = "@"
LOOK_AGAIN_S = 30.0
MAX_STRAY_SUBJECTS = 64

_KEY_LANES = tuple(f"key-{number:02d}" for number in range(KEY_LANES))
_WATCHED = (*(lane for lane in LANES if lane != NORMAL), DUE, *_KEY_LANES)


class Lane(NamedTuple):
    """One consumer of an agent: where it is, what it takes, and how many may be in flight over all replicas."""

    name: str
    stream: str
    consumer: str
    subjects: tuple[str, ...]
    max_ack_pending: int = MAX_ACK_PENDING


def lane(connection: Connection, agent: str, name: str, subjects: Sequence[str] = ()) -> Lane:
    """The lane of an agent; `subjects` for broadcasts and strays, which are asked for by subject."""
    spelled, streams = connection.subjects, StreamNames.of(connection.settings.namespace)
    consumer = agent if name == NORMAL else f"{agent}{SEPARATOR}{name}"
    if name == BROADCASTS:
        return Lane(name, streams.events, agent, tuple(subjects))
    if name == STRAY:
        return Lane(name, streams.work, consumer, tuple(subjects))
    if name == DUE:
        return Lane(name, streams.later, agent, (spelled.due_of(agent),))
    in_flight = 1 if is_key_lane(name) else MAX_ACK_PENDING
    return Lane(name, streams.work, consumer, (spelled.work_lane(agent, name),), in_flight)


async def ensure_lane(connection: Connection, lane: Lane) -> None:
    """Creates the lane's consumer, or brings it into step. Raises BrokerError."""
    await connection.patiently(
        lambda: ensure_consumer(
            connection,
            lane.stream,
            lane.consumer,
            lane.subjects,
            max_ack_pending=lane.max_ack_pending,
            from_now=lane.name == BROADCASTS,
        )
    )


def consumers_of(connection: Connection, agent: str) -> list[tuple[str, str]]:
    """Stream and name of every consumer that takes work away from an agent's queue, whether it exists or not."""
    lanes = [lane(connection, agent, name) for name in (NORMAL, *_WATCHED, TASK, STRAY)]
    return [(one.stream, one.consumer) for one in lanes]


def agent_of(consumer: str) -> str:
    """The agent that a consumer belongs to."""
    return consumer.partition(SEPARATOR)[0]


async def lanes_in_need(connection: Connection, agent: str) -> list[Lane]:
    """The lanes besides `normal` for which messages wait. Raises BrokerError.

    Subjects below the agent's prefix that are on no lane (a stranger's) are one lane together.
    """
    names = StreamNames.of(connection.settings.namespace)
    work, due = await asyncio.gather(
        subjects_with_messages(connection, names.work, connection.subjects.work_of(agent)),
        subjects_with_messages(connection, names.later, connection.subjects.due_of(agent)),
    )
    needed, stray = set[str](), []
    for subject in work:
        tokens = subject.split(".")
        if len(tokens) > 5 and (tokens[4] in (NORMAL, TASK) or tokens[4] in _WATCHED):
            needed.add(tokens[4])
        else:
            stray.append(subject)
    if due:
        needed.add(DUE)
    lanes = [lane(connection, agent, name) for name in sorted(needed - {NORMAL, TASK})]
    if stray:
        lanes.append(lane(connection, agent, STRAY, sorted(stray)[:MAX_STRAY_SUBJECTS]))
    return lanes


class LaneWatch:
    """Notices which lanes of an agent come into need, and says so once for each.

    It looks at the stream when it starts, after every reconnection, and now and then; and it listens to the
    history of the lanes that are not open yet, so that the first message on one is noticed at once.
    """

    def __init__(self, connection: Connection, agent: str, *, needed: Callable[[Lane], None]) -> None:
        self._connection = connection
        self._agent = agent
        self._needed = needed
        self._open: dict[str, tuple[str, ...]] = {}
        self._listening: dict[str, Subscription] = {}
        self._look = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listens, then looks. `needed` is called for what is found before it returns. Raises BrokerError."""
        for name in _WATCHED:
            subject = self._connection.subjects.history_lane(self._agent, name)
            self._listening[name] = await self._connection.subscribe(subject, self._hear)
        self._connection.on_reconnect(self._look.set)
        self._open_all(await self._connection.patiently(lambda: lanes_in_need(self._connection, self._agent)))
        self._task = self._connection.tasks.start(self._run(), name=f"lanes of {self._agent}")

    async def stop(self) -> None:
        """Stops noticing; bounded; a second call does nothing."""
        if self._task is not None:
            self._connection.remove_listener(self._look.set)
            await end(self._task)
            self._task = None
        await self._stop_listening(list(self._listening))

    def _hear(self, message: Arrival) -> None:
        name = message.subject.split(".")[4]
        self._open_all([lane(self._connection, self._agent, name)])
        self._look.set()

    def _open_all(self, found: Iterable[Lane]) -> None:
        for one in found:
            if self._open.get(one.name) != one.subjects:
                self._open[one.name] = one.subjects
                self._needed(one)

    async def _run(self) -> None:
        while True:
            await self._stop_listening([name for name in self._open if name in self._listening])
            try:
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await self._look.wait()
            except TimeoutError:
                pass
            self._look.clear()
            try:
                self._open_all(await lanes_in_need(self._connection, self._agent))
            except BusError as problem:
                log.debug("lanes of %s: %s", self._agent, problem)

    async def _stop_listening(self, names: Iterable[str]) -> None:
        for name in names:
            await self._listening.pop(name).drain()
