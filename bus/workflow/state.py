"""Workflow state: small JSON documents that all agents of one workflow share, changed by compare-and-set."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from bus.broker.connection import Connection
from bus.broker.records import NOTHING, Records, Write
from bus.broker.streams import StreamNames
from bus.broker.subjects import token
from bus.errors import error
from bus.workflow.branches import branch_now, document_key
from bus.workflow.conflict import Stand, conflict
from bus.workflow.fence import NO_FENCE, Fence

MAX_CONFLICTS = 200

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Versioned:
    """A document with the revision that it has, and who wrote it when. Revision 0: nobody has written it."""

    document: Document | None
    revision: int
    writer: str
    written_at: datetime | None


class WorkflowState:
    """The documents of one workflow. Kept for 30 days, or as long as the history.

    `below` is a family of documents of the bus itself, apart from those of users.

    Each branch of a workflow has its own: `branch` names it, None stands for the newest. What a slot protects passes
    its `fence`. `writer` is the name that others read when their write lost.
    """

    __slots__ = ("_below", "_branch", "_connection", "_fence", "_records", "_workflow_id", "_writer")

    def __init__(
        self,
        connection: Connection,
        workflow_id: str | None,
        *,
        below: str = "",
        branch: int | None = None,
        writer: str = "",
        fence: Fence = NO_FENCE,
    ) -> None:
        self._connection = connection
        self._writer = writer or connection.name
        self._records = Records(
            connection, StreamNames.of(connection.settings.namespace).workflows, writer=self._writer
        )
        self._workflow_id = workflow_id
        self._branch = branch
        self._below = f"{below}." if below else ""
        self._fence = fence

    async def read(self, name: str) -> Document | None:
        """The document, or None when nobody has written it. Raises BrokerError."""
        return (await self.read_versioned(name)).document

    async def read_versioned(self, name: str) -> Versioned:
        """The document with its revision, for `write`. Raises BrokerError."""
        record = await self._records.read(await self._key(name))
        document = None if record.value is None else orjson.loads(record.value)
        return Versioned(document, record.revision, record.writer, record.written_at)

    async def write(self, name: str, document: Document, *, after: int) -> int:
        """Writes the document if its revision is still `after`, and returns the new revision.

        Raises ToolError `tool.execution_failed`, retryable, when it is not: `details.theirs` and `details.ours` name
        both writers. BrokerError `broker.unavailable` when the answer was lost; the write may have happened.
        """
        key = await self._key(name)
        revision = await self._fence.write(self._records, Write(key, _encoded(document), after))
        if revision is None:
            raise conflict(f"document {name!r}", await self._records.read(key), Stand(self._writer, after))
        return revision

    async def update(self, name: str, change: Callable[[Document | None], Document]) -> Document:
        """Replaces the document by `change(document)` and returns the new one.

        When somebody else writes first, `change` runs again on what they wrote, so it must be pure. A change
        that returns an equal document writes nothing. Raises `broker.unavailable` when the broker cannot answer, and
        after 200 conflicts in a row as `write` does.
        """
        key = await self._key(name)
        record = NOTHING
        for conflicts in range(MAX_CONFLICTS):
            record = await self._records.read(key)
            before = None if record.value is None else orjson.loads(record.value)
            after = change(before)
            value = _encoded(after)
            if value == record.value:
                return after
            if await self._fence.write(self._records, Write(key, value, record.revision)) is not None:
                return after
            await asyncio.sleep(random.uniform(0, min(0.5, 0.005 * 2 ** min(conflicts, 7))))
        raise conflict(
            f"document {name!r}, changed by others {MAX_CONFLICTS} times in a row,",
            await self._records.read(key),
            Stand(self._writer, record.revision),
        )

    async def _key(self, name: str) -> str:
        if self._workflow_id is None:
            raise error(
                "protocol.malformed",
                "this message belongs to no workflow, so it has no state",
                path="workflow_id",
            )
        branch = self._branch
        if branch is None:
            branch = await branch_now(self._records, self._workflow_id)
        return document_key(token(self._workflow_id), branch, f"{self._below}{token(name)}")


def _encoded(document: Document) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
