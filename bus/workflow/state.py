"""Workflow state: small JSON documents that all agents of one workflow share, changed by compare-and-set."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import orjson

from bus.broker.connection import Connection
from bus.broker.records import Records
from bus.broker.streams import StreamNames
from bus.broker.subjects import token
from bus.errors import error

MAX_CONFLICTS = 200

Document = dict[str, Any]


class WorkflowState:
    """The documents of one workflow. Kept for 30 days, or as long as the history.

    `below` is a family of documents of the bus itself, apart from those of users.
    """

    __slots__ = ("_below", "_records", "_workflow_id")

    def __init__(self, connection: Connection, workflow_id: str | None, *, below: str = "") -> None:
        self._records = Records(connection, StreamNames.of(connection.settings.namespace).workflows)
        self._workflow_id = workflow_id
        self._below = f"{below}." if below else ""

    async def read(self, name: str) -> Document | None:
        """The document, or None when nobody has written it. Raises BrokerError."""
        record = await self._records.read(self._key(name))
        return orjson.loads(record.value) if record.revision else None

    async def update(self, name: str, change: Callable[[Document | None], Document]) -> Document:
        """Replaces the document by `change(document)` and returns the new one.

        When somebody else writes first, `change` runs again on what they wrote, so it must be pure. A change
        that returns an equal document writes nothing. Raises `broker.unavailable` when the broker cannot answer,
        or after 200 conflicts in a row.
        """
        key = self._key(name)
        for conflicts in range(MAX_CONFLICTS):
            record = await self._records.read(key)
            before = orjson.loads(record.value) if record.revision else None
            after = change(before)
            value = orjson.dumps(after, option=orjson.OPT_SORT_KEYS)
            if record.revision and value == record.value:
                return after
            if await self._records.write(key, value, after=record.revision):
                return after
            await asyncio.sleep(random.uniform(0, min(0.5, 0.005 * 2 ** min(conflicts, 7))))
        raise error("broker.unavailable", f"{key} was changed by others {MAX_CONFLICTS} times in a row")

    def _key(self, name: str) -> str:
        if self._workflow_id is None:
            raise error(
                "protocol.malformed",
                "this message belongs to no workflow, so it has no state",
                path="workflow_id",
            )
        return f"{token(self._workflow_id)}.{self._below}{token(name)}"
