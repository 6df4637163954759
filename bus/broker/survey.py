"""A survey of the broker: what streams hold, which consumers exist and how far they are, for `bus doctor`."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import nats.js.errors
from nats.js.api import ConsumerInfo, DiscardPolicy

from bus.broker.connection import Connection
from bus.broker.lanes import SEPARATOR, agent_of
from bus.broker.streams import StreamNames, has_schedules, subjects_with_messages
from bus.broker.translate import translated


@dataclass(frozen=True, slots=True)
class AgentQueue:
    """The messages of one agent over all its lanes. `replicas` is how many pull now; None when it never had a consumer.

    What is not due yet does not count as waiting.
    """

    agent: str
    waiting: int
    in_flight: int
    redelivered: int
    replicas: int | None


@dataclass(frozen=True, slots=True)
class StreamSize:
    """How much a stream holds; `max_bytes` is -1 when it refuses nothing. `replicas` counts copies."""

    name: str
    messages: int
    bytes: int
    max_bytes: int
    replicas: int


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """One message that a stream holds for an agent: nobody has settled it yet."""

    subject: str
    stream_seq: int
    data: bytes
    stored_at: datetime


async def stream_sizes(connection: Connection) -> list[StreamSize]:
    """The streams of this bus. Raises BrokerError, also when one is missing."""
    names = StreamNames.of(connection.settings.namespace)
    sizes = []
    later = [names.later] if has_schedules(connection.server_version) else []
    kept = (names.history, names.events, names.streams, names.dead, names.held, names.done, names.audit)
    for name in (names.work, *later, *kept):
        with translated(f"look at the stream {name}"):
            found = await connection.jetstream().stream_info(name)
        sizes.append(
            StreamSize(
                name,
                found.state.messages,
                found.state.bytes,
                found.config.max_bytes or -1 if found.config.discard is DiscardPolicy.NEW else -1,
                found.config.num_replicas or 1,
            )
        )
    return sizes


async def agent_queues(connection: Connection) -> list[AgentQueue]:
    """The queue of every agent that has a consumer or a message, by name. Raises BrokerError."""
    names, subjects = StreamNames.of(connection.settings.namespace), connection.subjects
    stored = {
        names.work: await subjects_with_messages(connection, names.work, subjects.work_all),
        names.later: await subjects_with_messages(connection, names.later, subjects.due_all),
    }
    queues: dict[str, AgentQueue] = {}
    taken = set[tuple[str, str]]()
    for stream in (names.work, names.later, names.events):
        for found in await _consumers(connection, stream):
            agent = agent_of(found.name)
            waiting, in_flight = found.num_pending or 0, found.num_ack_pending or 0
            known = queues.get(agent, AgentQueue(agent, 0, 0, 0, 0))
            is_main = stream == names.work and SEPARATOR not in found.name
            queues[agent] = AgentQueue(
                agent,
                known.waiting + waiting,
                known.in_flight + in_flight,
                known.redelivered + (found.num_redelivered or 0),
                found.num_waiting or 0 if is_main else known.replicas,
            )
            taken.update(
                (stream, pattern) for pattern in found.config.filter_subjects or [found.config.filter_subject or ""]
            )
    for stream, counts in stored.items():
        patterns = [pattern.removesuffix(">") for at, pattern in taken if at == stream and pattern]
        for subject, count in counts.items():
            # What a consumer has is in its own figures; a killed broker may keep, besides, what it recorded as settled.
            if not any(subject.startswith(pattern) for pattern in patterns):
                agent = subject.split(".")[3]
                known = queues.get(agent, AgentQueue(agent, 0, 0, 0, None))
                queues[agent] = replace(known, waiting=known.waiting + count)
    return sorted(queues.values(), key=lambda queue: queue.agent)


def is_unattended(queue: AgentQueue) -> bool:
    """Whether messages wait for an agent that has run and that nobody runs now; busy replicas have some in flight."""
    return queue.replicas == 0 and queue.waiting > 0 and not queue.in_flight


async def waiting_counts(connection: Connection) -> dict[str, int]:
    """How many messages are stored for each agent, waiting or in flight. Raises BrokerError.

    One look at one moment: a message stays in the stream until what it caused is there too, so an empty answer
    means that a cascade has ended.
    """
    names, subjects = StreamNames.of(connection.settings.namespace), connection.subjects
    counts: Counter[str] = Counter()
    for stream, pattern in ((names.later, subjects.due_all), (names.work, subjects.work_all)):
        for subject, count in (await subjects_with_messages(connection, stream, pattern)).items():
            counts[subject.split(".")[3]] += count
    return dict(counts)


async def untakeable(connection: Connection) -> dict[str, int]:
    """Subjects of the work stream that are no agent's, and how many messages each holds. Raises BrokerError.

    An agent takes whatever is below its prefix; a stranger may publish to the prefix itself.
    """
    names, subjects = StreamNames.of(connection.settings.namespace), connection.subjects
    stored = await subjects_with_messages(connection, names.work, subjects.work_all)
    return {subject: count for subject, count in sorted(stored.items()) if subject.count(".") < 4}


async def agents_with_consumer(connection: Connection) -> frozenset[str]:
    """The agents that a replica has run for, now or before. Raises BrokerError."""
    found = await _consumers(connection, StreamNames.of(connection.settings.namespace).work)
    return frozenset(agent_of(one.name) for one in found)


async def waiting_messages(connection: Connection) -> AsyncIterator[WaitingMessage]:
    """What is stored for agents, oldest first, without taking it; one request a message. Raises BrokerError."""
    names, subjects = StreamNames.of(connection.settings.namespace), connection.subjects
    for stream, pattern in ((names.later, subjects.due_all), (names.work, subjects.work_all)):
        async for message in _stored(connection, stream, pattern):
            yield message


def delayed_messages(connection: Connection) -> AsyncIterator[WaitingMessage]:
    """What is stored for a later time; one request a message. Raises BrokerError."""
    return _stored(connection, StreamNames.of(connection.settings.namespace).later, connection.subjects.later_all)


async def delivered_up_to(connection: Connection) -> dict[tuple[str, str], int]:
    """By stream and consumer: the sequence up to which messages were delivered at least once. Raises BrokerError."""
    names = StreamNames.of(connection.settings.namespace)
    return {
        (stream, found.name): (found.delivered.stream_seq or 0) if found.delivered else 0
        for stream in (names.work, names.later)
        for found in await _consumers(connection, stream)
    }


async def _stored(connection: Connection, stream: str, pattern: str) -> AsyncIterator[WaitingMessage]:
    after = 0
    while True:
        with translated(f"read the stream {stream}"):
            try:
                found = await connection.jetstream().get_msg(stream, seq=after + 1, subject=pattern, next=True)
            except nats.js.errors.NotFoundError:
                return
        after = found.seq or after + 1
        yield WaitingMessage(found.subject or "", after, found.data or b"", found.time or datetime.now(UTC))


async def _consumers(connection: Connection, stream: str) -> list[ConsumerInfo]:
    found: list[ConsumerInfo] = []
    with translated(f"look at the consumers of {stream}"):
        try:
            while batch := await connection.jetstream().consumers_info(stream, offset=len(found)):
                found += batch
        except nats.js.errors.NotFoundError:
            return []
    # Others are readers of a stream, which belong to nobody.
    return [one for one in found if one.config.durable_name]


async def broadcast_listeners(connection: Connection) -> dict[str, tuple[str, ...]]:
    """By agent: the subjects of the broadcasts that it takes. Raises BrokerError."""
    events = StreamNames.of(connection.settings.namespace).events
    return {
        agent_of(found.name): tuple(found.config.filter_subjects or [found.config.filter_subject or ""])
        for found in await _consumers(connection, events)
    }
