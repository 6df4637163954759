"""The submission of a task: its record is written first, then its message is stored, both as often as one likes.

Whoever ends in between leaves a record that nothing runs; submitting again with the same key stores the message
then, and without that the record ends at its deadline.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import orjson

from bus.broker.connection import Connection
from bus.broker.store import store
from bus.broker.subjects import TASK
from bus.calls.asked import REQUEST_TYPE, Asked
from bus.calls.attributes import call_attributes
from bus.calls.draft import CallDraft
from bus.calls.tasks.record import LATE_S, TaskRecord, TaskState
from bus.calls.tasks.store import NoSuchTask, TaskStore, now
from bus.envelope import Envelope, dedupe_header, derive_message_id, instant, new_message_id, new_trace_id
from bus.errors import BusError, error
from bus.telemetry.context import TraceContext
from bus.telemetry.logs import tell_sent
from bus.telemetry.spans import SpanKind, Telemetry
from bus.trust import budget
from bus.trust.delegation import ON_BEHALF_OF
from bus.workflow.artifacts import Artifacts
from bus.workflow.references import refer

MAX_TASK_S = 7 * 86400.0
TASK_ID = "task_id"
"""The extension that calls below a task carry: what they submit is a part of that task."""


@dataclass(frozen=True, slots=True)
class Wish:
    """Who wants a task, of whom, in the course of what. `asker` is the agent that asks, `cause` what it handles."""

    draft: CallDraft
    agent: str
    asker: str
    cause: Envelope | None = None
    parent: TraceContext | None = None


class Submission:
    """Submits tasks over one connection, under one name. Safe to use from many tasks."""

    def __init__(self, connection: Connection, telemetry: Telemetry, name: str) -> None:
        self.store = TaskStore(connection)
        self._connection = connection
        self._telemetry = telemetry
        self._name = name
        self._artifacts = Artifacts(connection)

    async def submit(self, wish: Wish) -> TaskRecord:
        """Returns the record once the task is stored; the one that was there for the same key.

        Raises `tool.validation_failed` for a key that came with other arguments before, `tool.cancelled` when the task
        in whose course it is asked for has been cancelled, `protocol.malformed`, `protocol.too_large` and BrokerError.
        """
        parent = await self._parent(wish)
        record = self._record(wish, parent)
        request = self._request(wish, record)
        request.encode()  # Refuses what JSON cannot say before anything is written.
        record = replace(record, digest=digest_of(wish.draft.to_json()))
        created = await self.store.create(record)
        if not created.is_ours:
            _check_same(created.record, record, wish.draft)
            record = created.record
            if record.state is not TaskState.QUEUED:
                return record
            request = self._request(wish, record)
        if parent is not None:
            await self._adopt(parent, record)
        await self._publish(request, record, wish)
        return record

    async def cancel(self, task_id: str, *, by: str) -> TaskRecord:
        """Ends a task, and those that were submitted in its course, and returns its record; see `cancel`."""
        return await cancel(self.store, task_id, by=by)

    async def _parent(self, wish: Wish) -> TaskRecord | None:
        found = wish.cause.extensions.get(TASK_ID) if wish.cause is not None else None
        if not isinstance(found, str):
            return None
        try:
            parent = await self.store.read(found)
        except NoSuchTask:
            return None
        if parent.state is TaskState.CANCELLED:
            raise _is_cancelled(parent)
        return parent

    async def _adopt(self, parent: TaskRecord, record: TaskRecord) -> None:
        await self.store.adopt(parent.id, record)
        # Noted first and looked at then: a cancel in between finds the note, one before is found here.
        if (await self.store.read(parent.id)).state is TaskState.CANCELLED:
            await cancel(self.store, record.id, by=self._name)
            raise _is_cancelled(parent)

    def _record(self, wish: Wish, parent: TaskRecord | None) -> TaskRecord:
        draft, cause = wish.draft, wish.cause
        if draft.timeout_s is not None and draft.timeout_s > MAX_TASK_S:
            raise ValueError(f"timeout_s of a task is {draft.timeout_s}, it must be at most {MAX_TASK_S:.0f}")
        id = draft.derived_key or new_message_id()
        if draft.idempotency_key is not None:
            id = derive_message_id("task", wish.asker, draft.capability, draft.idempotency_key)
        submitted_at = now()
        deadline_at = submitted_at + timedelta(seconds=draft.timeout_s or self._connection.settings.task_timeout_s)
        return TaskRecord(
            id=id,
            agent=wish.agent,
            capability=draft.capability,
            sender=wish.asker,
            digest="-",
            trace_id=cause.trace_id if cause is not None else new_trace_id(),
            submitted_at=submitted_at,
            deadline_at=min(deadline_at, _inherited(cause, parent) or deadline_at),
            workflow_id=draft.workflow_id or (cause.workflow_id if cause is not None else None),
            session_id=draft.session_id or (cause.session_id if cause is not None else None),
            parent=parent.id if parent is not None else None,
        )

    def _request(self, wish: Wish, record: TaskRecord) -> Envelope:
        draft = wish.draft
        asked = Asked(
            record.id, record.capability, draft.to_json(), draft.version, draft.repairs_left, draft.max_result_bytes
        )
        extensions: dict[str, Any] = budget.inherit(wish.cause, self._name) if wish.cause is not None else {}
        deadline_at = record.deadline_at.isoformat()
        extensions["budget"] = {**extensions.get("budget", {}), "deadline_at": deadline_at}
        if wish.asker != self._name:
            extensions.setdefault(ON_BEHALF_OF, [wish.asker])
        return Envelope(
            sender=self._name,
            to=record.agent,
            type=REQUEST_TYPE,
            message_id=record.id,
            trace_id=record.trace_id,
            workflow_id=record.workflow_id,
            session_id=record.session_id,
            role="assistant",
            extensions=extensions,
            payload=asked.to_payload(),
        )

    async def _publish(self, request: Envelope, record: TaskRecord, wish: Wish) -> None:
        subject = self._connection.subjects.work(request.to, TASK, self._name, REQUEST_TYPE)
        timeout_s = self._connection.settings.publish_timeout_s
        asked = Asked.of(request)
        span = self._telemetry.start(
            lambda: f"submit {asked.tool_name}",
            SpanKind.PRODUCER,
            trace_id=request.trace_id,
            parent=wish.parent,
            sampling_key=request.workflow_id or request.trace_id,
            attributes=lambda: call_attributes(self._name, asked, request),
        )
        # Of the asker, also where the agent sends it to itself: both ways it is one message.
        headers = {"Nats-Msg-Id": dedupe_header(record.sender, record.id)}
        # Of an agent that never comes nothing stays for ever; as long as the history, because its copy ends with it.
        left_s = max(0.0, (record.deadline_at - now()).total_seconds()) + LATE_S
        headers["Nats-TTL"] = str(round(left_s + self._connection.settings.history_max_age_s))
        if span.context is not None:
            headers.update(span.context.to_headers())
        try:
            inline_limit = self._connection.settings.inline_limit
            data = request.encode()
            if len(data) > inline_limit:
                referring = await refer(request, self._artifacts, over_bytes=inline_limit, timeout_s=timeout_s)
                data = referring.encode()
            await store(self._connection, subject, data, headers, timeout_s=timeout_s)
            tell_sent(request, headers)
        except BusError as problem:
            span.fail(problem.info.code, problem.info.message)
            raise
        finally:
            span.end()


async def cancel(store: TaskStore, task_id: str, *, by: str) -> TaskRecord:
    """Ends a task as cancelled, unless it has ended, and returns its record; the answer is the same each time.

    It counts at once, whether or not anybody runs it. Whoever does ends that within seconds. What was submitted in
    its course is cancelled too, down to the last. Raises NoSuchTask and BrokerError.
    """
    record = (await store.change(task_id, lambda one: one.expired(now()) or one.cancelled(by, now()))).record
    if record.state is TaskState.CANCELLED:
        await cancel_below(store, task_id, by=by)
    return record


async def cancel_below(store: TaskStore, task_id: str, *, by: str) -> None:
    """Cancels what was submitted in the course of a task, and what was in the course of that."""
    for child in await store.children(task_id):
        try:
            await cancel(store, child, by=by)
        except NoSuchTask:
            continue


def digest_of(arguments: Any) -> str:
    """What two requests with the same arguments have in common."""
    return hashlib.sha256(orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _inherited(cause: Envelope | None, parent: TaskRecord | None) -> datetime | None:
    """The deadline of what the task is a part of. That of a call is no more than the patience of its caller."""
    if parent is not None:
        return parent.deadline_at
    if cause is None or cause.type == REQUEST_TYPE:
        return None
    deadline = (cause.extensions.get("budget") or {}).get("deadline_at")
    return None if deadline is None else instant(deadline)


def _check_same(found: TaskRecord, wanted: TaskRecord, draft: CallDraft) -> None:
    if (found.digest, found.capability) != (wanted.digest, wanted.capability):
        key = (draft.idempotency_key or found.id)[:64]
        raise error(
            "tool.validation_failed",
            f"the idempotency key {key!r} came with other arguments before; use a new key for new work",
            errors=[{"path": "extensions.idempotency_key", "problem": "came with other arguments before"}],
        )


def _is_cancelled(parent: TaskRecord) -> BusError:
    return error("tool.cancelled", f"the task {parent.id}, in whose course this was asked for, has been cancelled")
