"""A survey of the broker: what streams hold, which consumers exist and how far they are, for `bus doctor`."""

from __future__ import annotations

from dataclasses import dataclass

from nats.js.api import ConsumerInfo

from bus.broker.connection import Connection, translated
from bus.broker.streams import StreamNames


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
