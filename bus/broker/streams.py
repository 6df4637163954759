"""Streams: what exists on the server, created and kept in step idempotently.

Provisioning compares what exists, changes only what it safely can, and reports what it will not change.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from bus.broker.stream_names import StreamNames as StreamNames
from bus.broker.translate import translated
from bus.config import Settings

DUPLICATE_WINDOW_S = 120.0
EVENT_MAX_AGE_S = 86400.0
STREAM_MAX_AGE_S = 600.0
DEAD_MAX_AGE_S = 30 * 86400.0
ENTRY_MAX_AGE_S = 30 * 86400.0
SCHEDULES_SINCE = (2, 12)
MAX_ACK_PENDING = 20_000

_FIXED = ("retention", "storage")
_COMPARED = ("subjects", "discard", "allow_msg_ttl", "allow_msg_schedules")
# Another process may have set more on purpose, and less would delete or refuse messages: these only grow.
_GROWING = ("max_age", "max_bytes", "num_replicas", "duplicate_window")


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


def kept_s(settings: Settings) -> float:
    """How long documents and artifacts are kept: as long as anything that may refer to them."""
    return max(settings.history_max_age_s, DEAD_MAX_AGE_S)


def stream_configs(connection: Connection) -> list[StreamConfig]:
    """The streams as they should be; without the one for delayed messages on a server that cannot delay."""
    settings, subjects = connection.settings, connection.subjects
    names = StreamNames.of(settings.namespace)
    schedules = has_schedules(connection.server_version)

    def config(name: str, *filled_by: str, **rest: Any) -> StreamConfig:
        return StreamConfig(
            name=name,
            subjects=list(filled_by),
            storage=StorageType.FILE,
            num_replicas=settings.replicas,
            **{"retention": RetentionPolicy.LIMITS, "discard": DiscardPolicy.OLD, **rest},
        )

    # A stream with schedules may not refuse new messages when it is full, so the work stream cannot be one, and
    # this one has no limit. Discarding the old would lose messages.
    later = config(
        names.later,
        subjects.later_all,
        retention=RetentionPolicy.WORK_QUEUE,
        duplicate_window=DUPLICATE_WINDOW_S,
        allow_msg_schedules=True,
        republish=RePublish(*subjects.due_to_history),
    )
    later.subjects = [subjects.later_all, subjects.due_all]
    return [
        # History first: what is republished before it exists would be missing from it. It must know schedules and
        # lifetimes, or it refuses the copies of messages that have one.
        config(
            names.history,
            subjects.history_all,
            max_age=settings.history_max_age_s,
            allow_msg_schedules=schedules or None,
            allow_msg_ttl=True,
        ),
        *([later] if schedules else []),
        config(names.events, subjects.event_all, max_age=EVENT_MAX_AGE_S, duplicate_window=DUPLICATE_WINDOW_S),
        config(
            names.streams,
            subjects.stream_all,
            max_age=STREAM_MAX_AGE_S,
            max_bytes=settings.stream_max_bytes,
            duplicate_window=DUPLICATE_WINDOW_S,
        ),
        config(
            names.dead,
            subjects.dead_all,
            given_up(names.work, "*"),
            given_up(names.later, "*"),
            max_age=DEAD_MAX_AGE_S,
            duplicate_window=DUPLICATE_WINDOW_S,
        ),
        # What was paused waits for as long as it takes.
        config(names.held, subjects.held_all, duplicate_window=DUPLICATE_WINDOW_S),
        config(
            names.done,
            subjects.done_all,
            max_age=settings.dedupe_window_s,
            duplicate_window=min(DUPLICATE_WINDOW_S, settings.dedupe_window_s),
        ),
        config(
            names.audit,
            subjects.audit_all,
            max_age=settings.audit_max_age_s,
            # Not a limit unless asked for: the server sets so much of its disk aside.
            max_bytes=settings.audit_max_bytes or None,
            duplicate_window=min(DUPLICATE_WINDOW_S, settings.audit_max_age_s),
        ),
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
        # Buckets whose entries have lifetimes. Without delete markers: an entry that ends leaves nothing behind.
        *(
            config(
                f"KV_{bucket}",
                f"$KV.{bucket}.>",
                max_msgs_per_subject=1,
                discard=DiscardPolicy.NEW,
                allow_msg_ttl=True,
                allow_rollup_hdrs=True,
                allow_direct=True,
                max_age=ENTRY_MAX_AGE_S,
            )
            for bucket in (names.registry, names.results, names.tasks, names.confirmations)
        ),
        # Documents, and leases with a lifetime.
        config(
            f"KV_{names.workflows}",
            f"$KV.{names.workflows}.>",
            max_msgs_per_subject=1,
            discard=DiscardPolicy.NEW,
            deny_delete=True,
            allow_msg_ttl=True,
            allow_rollup_hdrs=True,
            allow_direct=True,
            max_age=kept_s(settings),
        ),
    ]


async def provision(connection: Connection) -> list[str]:
    """Creates or updates every stream and bucket.

    Returns one readable line for each difference that it left alone, because changing it would lose messages
    or break others. Safe to call from many processes at once. Raises BrokerError.
    """
    return await connection.patiently(lambda: _provision(connection))


async def _provision(connection: Connection) -> list[str]:
    left_alone: list[str] = []
    with translated("provision the streams"):
        for wanted in stream_configs(connection):
            left_alone += await _ensure_stream(connection, wanted)
        await _ensure_buckets(connection)
    return left_alone


async def _ensure_buckets(connection: Connection) -> None:
    settings = connection.settings
    names, js = StreamNames.of(settings.namespace), connection.jetstream()
    for wanted in _bare_buckets(connection):
        await _ensure_stream(connection, wanted)
    bucket = f"OBJ_{names.artifacts}"
    try:
        await js.stream_info(bucket)
        return
    except nats.js.errors.NotFoundError:
        pass
    shared: dict[str, Any] = {"ttl": kept_s(settings), "replicas": settings.replicas}
    try:
        await js.create_object_store(names.artifacts, storage=StorageType.FILE, **shared)
    except nats.js.errors.BadRequestError:
        # Another process created it between our two requests.
        await js.stream_info(bucket)


def _bare_buckets(connection: Connection) -> list[StreamConfig]:
    """The buckets that are made as streams, because nats-py cannot make a bucket whose values have lifetimes."""
    names = StreamNames.of(connection.settings.namespace)
    return [
        StreamConfig(
            name=f"KV_{bucket}",
            subjects=[f"$KV.{bucket}.>"],
            storage=StorageType.FILE,
            num_replicas=connection.settings.replicas,
            max_msgs_per_subject=1,
            discard=DiscardPolicy.NEW,
            deny_delete=True,
            allow_rollup_hdrs=True,
            allow_direct=True,
            allow_msg_ttl=bucket == names.registry or None,
        )
        for bucket in (names.registry, names.contracts)
    ]


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
