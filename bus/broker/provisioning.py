"""Provisioning: the streams and buckets as they should be, created and kept in step idempotently.

It compares what exists, changes only what it safely can, and reports what it will not change.
"""

from __future__ import annotations

from typing import Any

import nats.js.errors
from nats.js.api import DiscardPolicy, RePublish, RetentionPolicy, StorageType, StreamConfig

from bus.broker.connection import Connection
from bus.broker.stream_names import StreamNames
from bus.broker.streams import given_up, has_schedules
from bus.broker.translate import translated
from bus.config import Settings

DUPLICATE_WINDOW_S = 120.0
EVENT_MAX_AGE_S = 86400.0
STREAM_MAX_AGE_S = 600.0
DEAD_MAX_AGE_S = 30 * 86400.0
ENTRY_MAX_AGE_S = 30 * 86400.0

_FIXED = ("retention", "storage")
_COMPARED = ("subjects", "discard", "allow_msg_ttl", "allow_msg_schedules")
# Another process may have set more on purpose, and less would delete or refuse messages: these only grow.
_GROWING = ("max_age", "max_bytes", "num_replicas", "duplicate_window")


def _kept_s(settings: Settings) -> float:
    """How long documents and artifacts are kept: as long as anything that may refer to them."""
    return max(settings.history_max_age_s, DEAD_MAX_AGE_S)


def _stream_configs(connection: Connection) -> list[StreamConfig]:
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
        subjects.due_all,
        retention=RetentionPolicy.WORK_QUEUE,
        duplicate_window=DUPLICATE_WINDOW_S,
        allow_msg_schedules=True,
        republish=RePublish(*subjects.due_to_history),
    )
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
            max_age=_kept_s(settings),
        ),
        config(
            f"KV_{names.contracts}",
            f"$KV.{names.contracts}.>",
            max_msgs_per_subject=1,
            discard=DiscardPolicy.NEW,
            deny_delete=True,
            allow_rollup_hdrs=True,
            allow_direct=True,
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
        for wanted in _stream_configs(connection):
            left_alone += await _ensure_stream(connection, wanted)
        await _ensure_artifacts(connection)
    return left_alone


async def _ensure_artifacts(connection: Connection) -> None:
    settings = connection.settings
    names, js = StreamNames.of(settings.namespace), connection.jetstream()
    bucket = f"OBJ_{names.artifacts}"
    try:
        await js.stream_info(bucket)
        return
    except nats.js.errors.NotFoundError:
        pass
    shared: dict[str, Any] = {"ttl": _kept_s(settings), "replicas": settings.replicas}
    try:
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
