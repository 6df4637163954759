"""Streams: what exists on the server, created and kept in step idempotently.

Provisioning compares what exists, changes only what it safely can, and reports what it will not change.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import nats.js.errors
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    RePublish,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamState,
)

from bus.broker.connection import Connection
from bus.broker.translate import translated

DUPLICATE_WINDOW_S = 120.0
EVENT_MAX_AGE_S = 86400.0
DEAD_MAX_AGE_S = 30 * 86400.0
MAX_ACK_PENDING = 20_000

_FIXED = ("retention", "storage")
_COMPARED = ("subjects", "discard", "allow_msg_ttl")
# Another process may have set more on purpose, and less would delete or refuse messages: these only grow.
_GROWING = ("max_age", "max_bytes", "num_replicas", "duplicate_window")


@dataclass(frozen=True, slots=True)
class StreamNames:
    """Names of the streams and buckets of one bus; the namespace keeps several buses apart."""

    work: str
    history: str
    events: str
    dead: str
    done: str
    workflows: str
    artifacts: str

    @classmethod
    def of(cls, namespace: str) -> StreamNames:
        """The names for one namespace: `BUS_WORK` and so on for the namespace `bus`."""
        upper, lower = namespace.upper(), namespace
        return cls(
            work=f"{upper}_WORK",
            history=f"{upper}_HISTORY",
            events=f"{upper}_EVENTS",
            dead=f"{upper}_DEAD",
            done=f"{upper}_DONE",
            workflows=f"{lower}_workflows",
            artifacts=f"{lower}_artifacts",
        )


def given_up(stream: str, consumer: str) -> str:
    """Where the server says that it delivered a message of `stream` too often and gives up on it."""
    return f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{stream}.{consumer}"


def stream_configs(connection: Connection) -> list[StreamConfig]:
    """The streams as they should be."""
    settings, subjects = connection.settings, connection.subjects
    names = StreamNames.of(settings.namespace)

    def config(name: str, *filled_by: str, **rest: Any) -> StreamConfig:
        return StreamConfig(
            name=name,
            subjects=list(filled_by),
            storage=StorageType.FILE,
            num_replicas=settings.replicas,
            **{"retention": RetentionPolicy.LIMITS, "discard": DiscardPolicy.OLD, **rest},
        )

    return [
        # History first: what is republished before it exists would be missing from it.
        config(names.history, subjects.history_all, max_age=settings.history_max_age_s),
        config(names.events, subjects.event_all, max_age=EVENT_MAX_AGE_S, duplicate_window=DUPLICATE_WINDOW_S),
        config(
            names.dead,
            subjects.dead_all,
            given_up(names.work, "*"),
            max_age=DEAD_MAX_AGE_S,
            duplicate_window=DUPLICATE_WINDOW_S,
        ),
        config(names.done, subjects.done_all, max_age=settings.dedupe_window_s),
        config(
            names.work,
            subjects.work_all,
            retention=RetentionPolicy.WORK_QUEUE,
            discard=DiscardPolicy.NEW,
            max_bytes=settings.work_max_bytes,
            duplicate_window=DUPLICATE_WINDOW_S,
            allow_msg_ttl=True,
            republish=RePublish(src=subjects.work_all, dest=subjects.history_all),
        ),
    ]


async def provision(connection: Connection) -> list[str]:
    """Creates or updates every stream and bucket.

    Returns one readable line for each difference that it left alone, because changing it would lose messages
    or break others. Safe to call from many processes at once. Raises BrokerError.
    """
    left_alone: list[str] = []
    with translated("provision the streams"):
        for wanted in stream_configs(connection):
            left_alone += await _ensure_stream(connection, wanted)
        await _ensure_buckets(connection)
    return left_alone


async def _ensure_buckets(connection: Connection) -> None:
    settings = connection.settings
    names, js = StreamNames.of(settings.namespace), connection.jetstream()
    # Kept as long as anything that may refer to it: the history, and the dead letters.
    max_age_s = max(settings.history_max_age_s, DEAD_MAX_AGE_S)
    shared: dict[str, Any] = {"ttl": max_age_s, "replicas": settings.replicas}
    for bucket in (f"KV_{names.workflows}", f"OBJ_{names.artifacts}"):
        try:
            await js.stream_info(bucket)
            continue
        except nats.js.errors.NotFoundError:
            pass
        try:
            if bucket.startswith("KV_"):
                await js.create_key_value(bucket=names.workflows, storage=StorageType.FILE, direct=True, **shared)
            else:
                await js.create_object_store(names.artifacts, storage=StorageType.FILE, **shared)
        except nats.js.errors.BadRequestError:
            # Another process created it between our two requests.
            await js.stream_info(bucket)


async def _ensure_stream(connection: Connection, wanted: StreamConfig) -> list[str]:
    js = connection.jetstream()
    try:
        existing = (await js.stream_info(wanted.name or "")).config
    except nats.js.errors.NotFoundError:
        try:
            await js.add_stream(wanted)
            return []
        except nats.js.errors.BadRequestError:
            # Another process created it between our two requests; compare with what it made.
            existing = (await js.stream_info(wanted.name or "")).config
    problems = [
        f"stream {wanted.name}: {name} is {getattr(existing, name)}, wanted {getattr(wanted, name)}; "
        "left alone, because only deleting the stream would change it"
        for name in _FIXED
        if getattr(existing, name) != getattr(wanted, name)
    ]
    if problems:
        return problems
    changes = {
        name: getattr(wanted, name)
        for name in _COMPARED
        if getattr(wanted, name) and getattr(existing, name) != getattr(wanted, name)
    }
    for name in _GROWING:
        now, then = getattr(existing, name) or 0, getattr(wanted, name) or 0
        if now == then or then <= 0:
            continue
        if now > then or now <= 0:
            problems.append(
                f"stream {wanted.name}: {name} is {now if now > 0 else 'unlimited'}, wanted {then}; left alone, "
                "because less would lose or refuse messages"
            )
        else:
            changes[name] = then
    if changes:
        await js.update_stream(existing.evolve(**changes))
    return problems


async def ensure_consumer(connection: Connection, agent: str) -> str:
    """Creates the durable consumer that all replicas of an agent share; returns its name."""
    settings = connection.settings
    names = StreamNames.of(settings.namespace)
    wanted = ConsumerConfig(
        durable_name=agent,
        filter_subject=connection.subjects.work_of(agent),
        ack_policy=AckPolicy.EXPLICIT,
        deliver_policy=DeliverPolicy.ALL,
        ack_wait=settings.ack_wait_s,
        max_deliver=settings.max_deliver,
        max_ack_pending=MAX_ACK_PENDING,
    )
    with translated(f"create the consumer of {agent}"):
        await connection.jetstream().add_consumer(names.work, wanted)
    return agent


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
