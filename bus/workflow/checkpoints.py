"""Checkpoints: how a workflow stood at one moment, kept so that it can stand so again (WF-2).

A checkpoint keeps the documents, the record and what was scheduled, and how far each stream was. What was in flight
follows from that when it is needed: it is what the streams held and no completion before had settled. The completions
are looked at first and the documents last, so nothing that counts as done is missing from the documents; what
ran at that moment counts as in flight and runs again, as after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from bus.broker.connection import Connection
from bus.broker.records import Record, Records
from bus.broker.streams import StreamNames, has_schedules, last_seq, subjects_with_messages
from bus.broker.subjects import token
from bus.broker.survey import delayed_messages
from bus.envelope import Envelope
from bus.errors import Rejected, error
from bus.workflow.artifacts import Artifacts
from bus.workflow.branches import BRANCH, branch_now, branch_of, document_key
from bus.workflow.record import By, WorkflowRecord
from bus.workflow.record_store import RecordStore

MAX_LOOKS = 20
MAX_NAME_CHARS = 128
ANSWERS = "context"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint. `documents` are names and revisions, `positions` the last sequence of each stream.

    `content` is the SHA-256 of the artifact with the rest. `begun` says, for the end of a phase, for which time.
    """

    name: str
    branch: int
    taken_at: datetime
    by: str
    documents: Mapping[str, int]
    positions: Mapping[str, int]
    content: str
    begun: int = 0
    revision: int = 0

    @classmethod
    def of(cls, record: Record) -> Checkpoint:
        """Reads an entry. Raises ValueError for what is none."""
        try:
            read = orjson.loads(record.value or b"")
            read["taken_at"] = datetime.fromisoformat(read["taken_at"])
            return cls(**read, revision=record.revision)
        except (KeyError, TypeError, ValueError) as problem:
            raise ValueError(f"not a checkpoint: {problem}") from problem


@dataclass(frozen=True, slots=True)
class Content:
    """What the artifact of a checkpoint holds: documents by the rest of their key, the record, what was scheduled."""

    documents: Mapping[str, Any]
    record: WorkflowRecord
    scheduled: tuple[Envelope, ...]

    @classmethod
    def of(cls, data: bytes) -> Content:
        """Reads it back."""
        read = orjson.loads(data)
        record = WorkflowRecord.from_wire(orjson.dumps(read["record"]), 0)
        return cls(read["documents"], record, tuple(Envelope.from_fields(one) for one in read["scheduled"]))


class Checkpoints:
    """The checkpoints of one workflow."""

    __slots__ = ("_artifacts", "_connection", "_id", "_records", "_store")

    def __init__(self, connection: Connection, workflow_id: str, *, writer: str = "") -> None:
        names = StreamNames.of(connection.settings.namespace)
        self._connection = connection
        self._id = workflow_id
        self._records = Records(connection, names.workflows, writer=writer)
        self._store = RecordStore(connection, writer=writer)
        self._artifacts = Artifacts(connection)

    async def known(self) -> list[Checkpoint]:
        """All of them, the oldest first. Raises BrokerError."""
        entries = self._records.entries(f"{token(self._id)}.checkpoint.*")
        return [Checkpoint.of(record) async for _, record in entries]

    async def get(self, name: str) -> Checkpoint | None:
        """The newest of a name; None when there is none. Raises BrokerError."""
        found = await self._records.read(self._key(name))
        return None if found.value is None else Checkpoint.of(found)

    async def content(self, checkpoint: Checkpoint) -> Content:
        """What it keeps. Raises ToolError `tool.execution_failed` when that has expired, and BrokerError."""
        return Content.of(await self._artifacts.get(checkpoint.content))

    async def take(self, name: str, by: By, *, branch: int | None, begun: int = 0) -> Checkpoint:
        """Takes a checkpoint in the place of an older one of that name.

        Raises ToolError `tool.cancelled` in a branch that was left, `tool.execution_failed` for a workflow without a
        record or whose documents change all the time; ValueError for an overlong name; BrokerError.
        """
        if not 0 < len(name) <= MAX_NAME_CHARS:
            raise ValueError(f"a checkpoint has a name of 1 to {MAX_NAME_CHARS} characters, this one has {len(name)}")
        newest = await branch_now(self._records, self._id)
        branch = newest if branch is None else branch
        if branch < newest:
            raise left_behind(self._id, branch, newest)
        before = await self._records.read(self._key(name))
        positions, scheduled = await self._frontier(branch)
        documents, revisions = await self._documents(branch)
        record = await self._store.read(self._id)
        if record is None:
            raise error("tool.execution_failed", f"workflow {self._id} has no record, so it has no checkpoints")
        content = {
            "documents": documents,
            "record": orjson.Fragment(record.to_wire()),
            "scheduled": [orjson.Fragment(one.encode()) for one in scheduled],
        }
        kept = await self._artifacts.put(orjson.dumps(content), name="checkpoint", media_type="application/json")
        entry = {
            "name": name,
            "branch": branch,
            "taken_at": by.at,
            "by": by.writer,
            "documents": revisions,
            "positions": positions,
            "content": kept.sha256,
            "begun": begun,
        }
        # Two who take one of the same name at once: either is as good.
        value = orjson.dumps(entry)
        revision = await self._records.write(self._key(name), value, after=before.revision)
        if revision is None:
            return Checkpoint.of(await self._records.read(self._key(name)))
        await self._store.change(self._id, lambda known, at: known.checkpointed(name, at))
        return Checkpoint.of(Record(value, revision))

    async def _frontier(self, branch: int) -> tuple[dict[str, int], list[Envelope]]:
        """How far each stream is, what settles before what is settled; and what waits for its time."""
        names = StreamNames.of(self._connection.settings.namespace)
        schedules = has_schedules(self._connection.server_version)
        streams = {"done": names.done, "dead": names.dead}
        positions = {name: await self._last(stream) for name, stream in streams.items()}
        scheduled: list[Envelope] = []
        if schedules and await subjects_with_messages(
            self._connection, names.later, self._connection.subjects.later_all
        ):
            async for message in delayed_messages(self._connection):
                try:
                    envelope = Envelope.decode(message.data)
                except Rejected:
                    continue
                if envelope.workflow_id == self._id and branch_of(envelope) == branch:
                    scheduled.append(envelope)
        streams = {"work": names.work, "event": names.events, **({"later": names.later} if schedules else {})}
        return positions | {name: await self._last(stream) for name, stream in streams.items()}, scheduled

    async def _last(self, stream: str) -> int:
        return await self._connection.patiently(lambda: last_seq(self._connection, stream))

    async def _documents(self, branch: int) -> tuple[dict[str, Any], dict[str, int]]:
        """All documents of a branch at one moment: read until twice the same ones are there."""
        workflow = token(self._id)
        first = document_key(workflow, branch, "")
        patterns = [f"{workflow}.{BRANCH}.{branch}.>"] if branch else [f"{workflow}.*", f"{workflow}.{ANSWERS}.>"]
        seen: dict[str, int] | None = None
        for _ in range(MAX_LOOKS):
            found = [(key, one) for pattern in patterns async for key, one in self._records.entries(pattern)]
            revisions = {key.removeprefix(first): one.revision for key, one in found}
            if revisions == seen:
                values = {key.removeprefix(first): orjson.Fragment(one.value or b"null") for key, one in found}
                return values, revisions
            seen = revisions
        raise error(
            "tool.execution_failed",
            f"the documents of workflow {self._id} changed {MAX_LOOKS} times while they were read; take the checkpoint "
            "when fewer handlers write",
            retryable=True,
        )

    def _key(self, name: str) -> str:
        return f"{token(self._id)}.checkpoint.{token(name)}"


def left_behind(workflow_id: str, branch: int, newest: int) -> Exception:
    """The error of who acts in a branch that was left."""
    return error(
        "tool.cancelled",
        f"workflow {workflow_id} was rolled back and goes on in branch {newest}; branch {branch} is left, and nothing "
        "more is done in it",
        reason="set_aside",
        branch=branch,
    )
