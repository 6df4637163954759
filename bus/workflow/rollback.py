"""Rollback: a workflow stands again as it did at a checkpoint, in a new branch, and goes on from there (WF-2).

One write decides it: the control document names the new branch and everything that is to be done. Before it nothing is
changed, and after it the old branch is left: every replica sets aside what belongs to it. The rest (documents, record,
the messages once more) has the same keys and ids each time, so who finds it unfinished finishes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from bus.broker.connection import Connection
from bus.broker.extent import kept_since
from bus.broker.records import Record, Records
from bus.broker.store import store
from bus.broker.streams import StreamNames
from bus.broker.subjects import LANES, is_key_lane, token
from bus.broker.survey import broadcast_listeners
from bus.envelope import Envelope, dedupe_header, instant
from bus.errors import ToolError, error
from bus.workflow.artifacts import Artifacts
from bus.workflow.branches import BRANCH, branch_key, document_key, id_in_branch
from bus.workflow.checkpoints import Checkpoint, Checkpoints, Content
from bus.workflow.conflict import Stand, conflict
from bus.workflow.in_flight import Open, in_flight, unknown
from bus.workflow.record import By, WorkflowRecord
from bus.workflow.record_store import RecordStore
from bus.workflow.recorded import read_records
from bus.workflow.references import DATA_REF, restore

# The server copies what it accepts into the history a moment later.
HISTORY_LAG = timedelta(seconds=0.5)
AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Rollback:
    """A rollback that is done. `resent` counts the messages that were sent again; `resumed`: it was left unfinished."""

    workflow_id: str
    checkpoint: str
    branch: int
    documents: int
    resent: int
    resumed: bool = False


class Rollbacks:
    """Rolls one workflow back. `writer` is who does it."""

    __slots__ = ("_artifacts", "_checkpoints", "_connection", "_id", "_records", "_store", "_writer")

    def __init__(self, connection: Connection, workflow_id: str, *, writer: str = "") -> None:
        self._connection = connection
        self._id = workflow_id
        self._writer = writer or connection.name
        self._records = Records(
            connection, StreamNames.of(connection.settings.namespace).workflows, writer=self._writer
        )
        self._store = RecordStore(connection, writer=self._writer)
        self._checkpoints = Checkpoints(connection, workflow_id, writer=self._writer)
        self._artifacts = Artifacts(connection)

    async def to(self, name: str) -> Rollback:
        """Rolls back to a checkpoint, or to the end of a phase; finishes first what somebody left unfinished.

        Raises ToolError `tool.execution_failed`, and has changed nothing, when it cannot: no such checkpoint, its
        content or the history has expired, somebody else rolled back at the same time (retryable, naming both).
        BrokerError: it may have happened, and doing it again finishes it.
        """
        control = await self._records.read(branch_key(self._id))
        plan = _plan(control)
        if plan is not None and not plan["is_complete"]:
            done = replace(await self._finish(plan), resumed=True)
            if plan["checkpoint"] == name:
                return done
            control = await self._records.read(branch_key(self._id))
            plan = _plan(control)
        checkpoint = await self._known(name)
        content = await self._content(checkpoint)
        messages = await self._in_flight(checkpoint, content)
        branch = (plan[BRANCH] if plan is not None else 0) + 1
        resent = [_again(one, branch, of=checkpoint.branch) for one in messages]
        kept = await self._artifacts.put(orjson.dumps(resent), name="rollback", media_type="application/json")
        plan = {
            "workflow_id": self._id,
            BRANCH: branch,
            "checkpoint": name,
            "content": checkpoint.content,
            "messages": kept.sha256,
            "by": self._writer,
            "at": datetime.now(UTC),
            "is_complete": False,
        }
        written = await self._records.write(branch_key(self._id), orjson.dumps(plan), after=control.revision)
        if written is None:
            found = await self._records.read(branch_key(self._id))
            raise conflict(f"the branch of workflow {self._id}", found, Stand(self._writer, control.revision))
        return await self._finish(plan)

    async def unfinished(self) -> str | None:
        """The checkpoint of a rollback that was decided and not finished."""
        plan = _plan(await self._records.read(branch_key(self._id)))
        return None if plan is None or plan["is_complete"] else str(plan["checkpoint"])

    async def _finish(self, plan: dict[str, Any]) -> Rollback:
        branch, name = int(plan[BRANCH]), str(plan["checkpoint"])
        content = Content.of(await self._artifacts.get(plan["content"]))
        messages = orjson.loads(await self._artifacts.get(plan["messages"]))
        for document, value in content.documents.items():
            await self._create(document_key(token(self._id), branch, document), value)
        await self._store.change(self._id, lambda record, by: _back(record, name, content.record, branch, by))
        gate = asyncio.Semaphore(AT_ONCE)

        async def send(one: dict[str, Any]) -> None:
            async with gate:
                await self._send(one)

        # Messages of one key in their order: they were read in it.
        for one in messages:
            if is_key_lane(one["lane"]):
                await self._send(one)
        await asyncio.gather(*(send(one) for one in messages if not is_key_lane(one["lane"])))
        value = orjson.dumps({**plan, "is_complete": True})
        found = await self._records.read(branch_key(self._id))
        now = _plan(found)
        if now is not None and now[BRANCH] == branch and not now["is_complete"]:
            await self._records.write(branch_key(self._id), value, after=found.revision)
        return Rollback(self._id, name, branch, len(content.documents), len(messages))

    async def _create(self, key: str, document: Any) -> None:
        value = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
        # Who was here before wrote the same, or the new branch has gone on from it.
        await self._connection.patiently(lambda: self._records.write(key, value, after=0))

    async def _known(self, name: str) -> Checkpoint:
        checkpoint = await self._checkpoints.get(name)
        if checkpoint is None:
            there = [one.name for one in await self._checkpoints.known()]
            raise _cannot(self._id, name, f"there is no such checkpoint; there {_are(there)}")
        return checkpoint

    async def _content(self, checkpoint: Checkpoint) -> Content:
        try:
            return await self._checkpoints.content(checkpoint)
        except ToolError:
            raise _cannot(self._id, checkpoint.name, "what it kept has expired from the artifacts") from None

    async def _in_flight(self, checkpoint: Checkpoint, content: Content) -> list[Open]:
        """The messages to send again. Raises ToolError when that cannot be known any more."""
        names = StreamNames.of(self._connection.settings.namespace)
        lag_s = (checkpoint.taken_at + HISTORY_LAG - datetime.now(UTC)).total_seconds()
        await asyncio.sleep(min(HISTORY_LAG.total_seconds(), max(0.0, lag_s)))
        history = await kept_since(self._connection, names.history)
        began = content.record.started_at
        if history is not None and history > began:
            raise _cannot(self._id, checkpoint.name, f"the history before {history:%Y-%m-%d %H:%M:%S} has expired")
        records = await read_records(self._connection, self._id, since=began - timedelta(minutes=2))
        lost = unknown(records, checkpoint, await kept_since(self._connection, names.done))
        if lost:
            key = lost[0]
            raise _cannot(
                self._id,
                checkpoint.name,
                f"the completions of {len(lost)} of its messages have expired (BUS_DEDUPE_WINDOW_S), the first is "
                f"{key.message_id} to {key.agent}; nobody knows any more whether they had been handled",
            )
        found = in_flight(records, checkpoint, content.scheduled, await broadcast_listeners(self._connection))
        for one in found:
            if DATA_REF in one.envelope.extensions:
                await self._check_payload(checkpoint, one.envelope)
        return found

    async def _check_payload(self, checkpoint: Checkpoint, envelope: Envelope) -> None:
        try:
            await restore(envelope, self._artifacts)
        except ToolError as problem:
            why = f"the payload of {envelope.type} {envelope.message_id} has expired: {problem.info.message}"
            raise _cannot(self._id, checkpoint.name, why) from problem

    async def _send(self, one: dict[str, Any]) -> None:
        envelope = Envelope.from_fields(one["envelope"])
        subjects = self._connection.subjects
        headers = {"Nats-Msg-Id": dedupe_header(envelope.sender, envelope.message_id)}
        subject = subjects.work(envelope.to, one["lane"], envelope.sender, envelope.type)
        due = envelope.extensions.get("deliver_at") if one["is_scheduled"] else None
        if due is not None and instant(due) > datetime.now(UTC):
            subject = subjects.later(envelope.to, envelope.sender, envelope.type, envelope.message_id)
            headers["Nats-Schedule"] = f"@at {instant(due).isoformat().replace('+00:00', 'Z')}"
            headers["Nats-Schedule-Target"] = subjects.due(envelope.to, envelope.sender, envelope.type)
        timeout_s = self._connection.settings.publish_timeout_s
        await store(self._connection, subject, envelope.encode(), headers, timeout_s=timeout_s)


def _again(one: Open, branch: int, *, of: int) -> dict[str, Any]:
    """A message as it is sent again, in the new branch and with the id that it has there."""
    lane = one.lane if one.lane in LANES or is_key_lane(one.lane) else "normal"
    envelope = one.envelope.replace(
        message_id=id_in_branch(one.envelope.message_id, branch, of=of),
        to=one.agent,
        extensions={**one.envelope.extensions, BRANCH: branch},
    )
    return {"lane": lane, "is_scheduled": one.lane == "later", "envelope": orjson.loads(envelope.encode())}


def _back(record: WorkflowRecord, name: str, to: WorkflowRecord, branch: int, by: By) -> WorkflowRecord:
    return record if record.branch >= branch else record.rolled_back(name, to, branch, by)


def _plan(control: Record) -> dict[str, Any] | None:
    if control.value is None:
        return None
    plan: dict[str, Any] = {"is_complete": True, **orjson.loads(control.value)}
    return plan


def _are(names: Sequence[str]) -> str:
    return f"are {', '.join(names)}" if names else "are none"


def _cannot(workflow_id: str, name: str, why: str) -> ToolError:
    problem = error(
        "tool.execution_failed",
        f"workflow {workflow_id} cannot be rolled back to {name!r}: {why}. Nothing was changed",
        reason="no_rollback",
    )
    assert isinstance(problem, ToolError)
    return problem
