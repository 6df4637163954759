"""A survey of the broker: what streams hold, which consumers exist and how far they are, for `bus doctor`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import nats.js.errors
from nats.js.api import ConsumerInfo

from bus.broker.connection import Connection
from bus.broker.streams import StreamNames
from bus.broker.translate import translated


@dataclass(frozen=True, slots=True)
class AgentQueue:
    """The messages of one agent. `replicas` is how many pull now; None when it never had a consumer."""

    agent: str
    waiting: int
    in_flight: int
    redelivered: int
    replicas: int | None


@dataclass(frozen=True, slots=True)
class StreamSize:
    """How much a stream holds; `max_bytes` is -1 when it has no limit. `replicas` counts copies."""

    name: str
    messages: int
    bytes: int
    max_bytes: int
    replicas: int


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """One message that the work stream holds: nobody has settled it yet."""

    subject: str
    stream_seq: int
    data: bytes


async def stream_sizes(connection: Connection) -> list[StreamSize]:
    """The streams of this bus. Raises BrokerError, also when one is missing."""
    names = StreamNames.of(connection.settings.namespace)
    sizes = []
    for name in (names.work, names.history, names.events, names.dead, names.done):
        with translated(f"look at the stream {name}"):
            found = await connection.jetstream().stream_info(name)
        sizes.append(
            StreamSize(
                name,
                found.state.messages,
                found.state.bytes,
                found.config.max_bytes if found.config.max_bytes is not None else -1,
                found.config.num_replicas or 1,
            )
        )
    return sizes


async def agent_queues(connection: Connection) -> list[AgentQueue]:
    """The queue of every agent that has a consumer or a message, by name. Raises BrokerError."""
    stream = StreamNames.of(connection.settings.namespace).work
    with translated("look at the agents' queues"):
        js = connection.jetstream()
        stored = (await js.stream_info(stream, subjects_filter=connection.subjects.work_all)).state.subjects or {}
        consumers: list[ConsumerInfo] = []
        while batch := await js.consumers_info(stream, offset=len(consumers)):
            consumers += batch
    queues = {
        found.name: AgentQueue(
            found.name,
            found.num_pending or 0,
            found.num_ack_pending or 0,
            found.num_redelivered or 0,
            found.num_waiting or 0,
        )
        for found in consumers
    }
    unread: dict[str, int] = {}
    for subject, count in stored.items():
        agent = subject.split(".")[3]
        if agent not in queues:
            unread[agent] = unread.get(agent, 0) + count
    for agent, count in unread.items():
        queues[agent] = AgentQueue(agent, count, 0, 0, None)
    return sorted(queues.values(), key=lambda queue: queue.agent)


async def waiting_counts(connection: Connection) -> dict[str, int]:
    """How many messages the work stream holds for each agent, waiting or in flight. Raises BrokerError.

    One look at one moment: a message stays in the stream until what it caused is there too, so an empty answer
    means that a cascade has ended.
    """
    stream = StreamNames.of(connection.settings.namespace).work
    with translated("look at the work stream"):
        found = await connection.jetstream().stream_info(stream, subjects_filter=connection.subjects.work_all)
    counts: dict[str, int] = {}
    for subject, count in (found.state.subjects or {}).items():
        agent = subject.split(".")[3]
        counts[agent] = counts.get(agent, 0) + count
    return counts


async def agents_with_consumer(connection: Connection) -> frozenset[str]:
    """The agents that a replica has run for, now or before. Raises BrokerError."""
    stream = StreamNames.of(connection.settings.namespace).work
    consumers: list[ConsumerInfo] = []
    with translated("look at the agents' consumers"):
        while batch := await connection.jetstream().consumers_info(stream, offset=len(consumers)):
            consumers += batch
    return frozenset(found.name for found in consumers)


async def waiting_messages(connection: Connection) -> AsyncIterator[WaitingMessage]:
    """What the work stream holds, oldest first, without taking it; one request a message. Raises BrokerError."""
    stream = StreamNames.of(connection.settings.namespace).work
    after = 0
    while True:
        with translated("read the work stream"):
            try:
                found = await connection.jetstream().get_msg(stream, seq=after + 1, subject=">", next=True)
            except nats.js.errors.NotFoundError:
                return
        after = found.seq or after + 1
        yield WaitingMessage(found.subject or "", after, found.data or b"")
