"""Streams: what they hold, and the consumers that deliver it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import nats.js.errors
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StreamState

from bus.broker.connection import Connection
from bus.broker.stream_names import StreamNames as StreamNames
from bus.broker.translate import translated

SCHEDULES_SINCE = (2, 12)
MAX_ACK_PENDING = 20_000


def given_up(stream: str, consumer: str) -> str:
    """Where the server says that it delivered a message of `stream` too often and gives up on it."""
    return f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{stream}.{consumer}"


def has_schedules(server_version: str) -> bool:
    """Whether a server of this version delivers messages at a set time (2.12 and newer)."""
    numbers = [int(part) for part in server_version.partition("-")[0].split(".")[:2] if part.isdigit()]
    return tuple(numbers) >= SCHEDULES_SINCE


def has_conditions(server_version: str) -> bool:
    """Whether a write may depend on the newest sequence of other subjects than its own (2.12 and newer)."""
    return has_schedules(server_version)


async def ensure_consumer(
    connection: Connection,
    stream: str,
    name: str,
    subjects: Sequence[str],
    *,
    max_ack_pending: int = MAX_ACK_PENDING,
    from_now: bool = False,
) -> str:
    """Creates or changes a durable consumer that all replicas of an agent share; returns its name.

    `from_now`: one that is new begins with new messages. Raises BrokerError.
    """
    wanted = ConsumerConfig(
        durable_name=name,
        ack_policy=AckPolicy.EXPLICIT,
        deliver_policy=DeliverPolicy.NEW if from_now else DeliverPolicy.ALL,
        ack_wait=connection.settings.ack_wait_s,
        max_deliver=connection.settings.max_deliver,
        max_ack_pending=max_ack_pending,
    )
    if len(subjects) == 1:
        wanted.filter_subject = subjects[0]
    else:
        wanted.filter_subjects = list(subjects)
    with translated(f"create the consumer {name} of {stream}"):
        await connection.jetstream().add_consumer(stream, wanted)
    return name


async def subjects_with_messages(connection: Connection, stream: str, pattern: str) -> dict[str, int]:
    """The subjects below `pattern` that have messages, and how many; none for a missing stream. Raises BrokerError."""
    with translated(f"look at the stream {stream}"):
        try:
            found = await connection.jetstream().stream_info(stream, subjects_filter=pattern)
        except nats.js.errors.NotFoundError:
            return {}
    return found.state.subjects or {}


async def ensure_reader(
    connection: Connection,
    stream: str,
    *,
    subjects: list[str],
    start_seq: int | None,
    start_time: datetime | None = None,
) -> tuple[str, int]:
    """Creates an ephemeral, unacknowledged consumer for ordered reading.

    Returns its name and how many stored messages it is going to deliver.
    It starts at `start_seq`, else at `start_time`, else with new messages. The server removes it
    after a minute without a reader.
    """
    config = ConsumerConfig(
        filter_subjects=subjects or None,
        ack_policy=AckPolicy.NONE,
        deliver_policy=DeliverPolicy.NEW,
        inactive_threshold=60,
        mem_storage=True,
        num_replicas=1,
    )
    if start_seq is not None:
        config.deliver_policy, config.opt_start_seq = DeliverPolicy.BY_START_SEQUENCE, start_seq
    elif start_time is not None:
        config.deliver_policy, config.opt_start_time = DeliverPolicy.BY_START_TIME, start_time
    with translated(f"read the stream {stream}"):
        created = await connection.jetstream().add_consumer(stream, config)
    return created.name, created.num_pending or 0


async def last_seq(connection: Connection, stream: str) -> int:
    """The sequence of the newest message of a stream, 0 when there is none. Raises BrokerError."""
    return (await stream_state(connection, stream)).last_seq


async def stream_state(connection: Connection, stream: str) -> StreamState:
    """Counts of a stream, for readers and `bus doctor`. Raises BrokerError."""
    with translated(f"look at the stream {stream}"):
        return (await connection.jetstream().stream_info(stream)).state


async def last_seq_of(connection: Connection, stream: str, subject: str) -> int:
    """The sequence of the newest message on one subject, 0 when there is none. Raises BrokerError."""
    with translated(f"look at {subject}"):
        try:
            return (await connection.jetstream().get_last_msg(stream, subject)).seq or 0
        except nats.js.errors.NotFoundError:
            return 0
