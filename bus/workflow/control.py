"""Control: what people have decided about workflows, known to every replica without asking.

A decision is a document `<workflow>.control.<...>` in the bucket of the workflows. Every replica reads them all when
it starts and follows them, so that each message costs one look into a dictionary, which is empty for workflows about
which nobody has decided anything. A new verb is a new document and a line in `Control.verdict`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from bus.broker.connection import Connection
from bus.broker.records import Record, Records
from bus.broker.streams import StreamNames
from bus.broker.subjects import token
from bus.broker.tasks import end
from bus.envelope import Envelope
from bus.errors import BrokerError, BusError, error
from bus.workflow.branches import BRANCH, branch_of

log = logging.getLogger("bus.workflow")

EVERY = "*.control.>"
RETRY_S = 1.0
FIRST_S = 5.0


@dataclass(frozen=True, slots=True)
class Control:
    """The decisions about one workflow: its documents by what their keys say after `control.`, and what they mean."""

    documents: Mapping[str, Mapping[str, Any]]
    branch: int = 0

    def with_document(self, name: str, document: Mapping[str, Any] | None) -> Control:
        """The same with one document more, another one, or (None) one less."""
        documents = {**self.documents}
        documents.pop(name, None)
        if document is not None:
            documents[name] = document
        branch = documents.get(BRANCH, {}).get(BRANCH, 0)
        return replace(self, documents=documents, branch=branch if isinstance(branch, int) else 0)

    def verdict(self, envelope: Envelope) -> str | None:
        """Why a message is set aside instead of handled; None when it is not."""
        branch = branch_of(envelope)
        if branch < self.branch:
            return f"of branch {branch}; the workflow was rolled back and goes on in branch {self.branch}"
        return None


NOTHING = Control({})
Decided = Callable[[str, Control], None]


class ControlWatch:
    """All decisions, as far as they are known here. `decided` hears of each new one; it must neither block nor raise.

    Who has not heard of a decision yet does what it forbids, into branches and subtrees where nobody looks any more.
    """

    def __init__(self, connection: Connection, *, decided: Decided | None = None) -> None:
        self._connection = connection
        self._records = Records(connection, StreamNames.of(connection.settings.namespace).workflows)
        self._decided = decided
        self._by_workflow: dict[str, Control] = {}
        self._ids: dict[str, str] = {}
        self._caught_up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Reads what is decided and follows it; a second call does nothing.

        Bounded: when the broker is slow it goes on with what it knows.
        """
        if self._task is None:
            self._task = self._connection.tasks.start(self._follow(), name="what is decided about workflows")
        try:
            async with asyncio.timeout(FIRST_S):
                await self._caught_up.wait()
        except TimeoutError:
            log.warning("the decisions about workflows are not read yet; what is cancelled may run until they are")

    async def stop(self) -> None:
        """Stops; a second call does nothing."""
        await end(self._task)

    def of(self, workflow_id: str | None) -> Control | None:
        """The decisions about a workflow; None when there are none."""
        return self._by_workflow.get(workflow_id or "")

    def verdict(self, envelope: Envelope) -> str | None:
        """Why a message is set aside, None when it is not. The one look that every message pays."""
        control = self._by_workflow.get(envelope.workflow_id or "")
        return None if control is None else control.verdict(envelope)

    def check(self, envelope: Envelope) -> None:
        """Raises ToolError `tool.cancelled` for what would be done in the course of a message that is set aside."""
        if (why := self.verdict(envelope)) is not None:
            raise set_aside(envelope, why)

    async def _follow(self) -> None:
        while True:
            try:
                async with self._records.reader(EVERY) as reader:
                    async for delivery in reader.until_now():
                        self._take(*self._records.entry(delivery))
                    self._caught_up.set()
                    async for delivery in reader:
                        self._take(*self._records.entry(delivery))
            except BrokerError as problem:
                log.debug("the decisions about workflows cannot be read, trying again: %s", problem.info.message)
            await asyncio.sleep(RETRY_S)

    def _take(self, key: str, record: Record) -> None:
        workflow, _, name = key.split(".", 2)
        document = None
        if record.value is not None:
            with contextlib.suppress(ValueError):
                read = orjson.loads(record.value)
                document = read if isinstance(read, dict) else None
            if document is None:
                log.warning("%s in the bucket of the workflows is no decision, and is ignored", key)
                return
        # Keys are tokens; an id that is none stands in the document.
        named = (document or {}).get("workflow_id")
        if isinstance(named, str) and token(named) == workflow:
            self._ids[workflow] = named
        workflow_id = self._ids.get(workflow, workflow)
        control = self._by_workflow.get(workflow_id, NOTHING).with_document(name, document)
        if control.documents:
            self._by_workflow[workflow_id] = control
        else:
            self._by_workflow.pop(workflow_id, None)
        if self._decided is not None:
            self._decided(workflow_id, control)


def set_aside(envelope: Envelope, why: str) -> BusError:
    """The error of what is done in the course of a message that is set aside."""
    return error(
        "tool.cancelled",
        f"{envelope.type} {envelope.message_id} is {why}; nothing more can be done in its course",
        reason="set_aside",
        branch=branch_of(envelope),
    )
