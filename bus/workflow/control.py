"""Control: what people have decided about workflows, known to every replica without asking.

A decision is a document `<workflow>.control.<...>` in the bucket of the workflows. Every replica reads them all when
it starts and follows them, so that each message costs one look into a dictionary, which is empty for workflows about
which nobody has decided anything. A decision about a part of a workflow needs to know what stands below its message:
the replica then reads the history once, and on from there when a message comes whose cause it does not know.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from bus.workflow.decision import Decision, Verb
from bus.workflow.family import Family, FamilyReader

log = logging.getLogger("bus.workflow")

EVERY = "*.control.>"
RETRY_S = 1.0
FIRST_S = 5.0
LEARN_TIMES = 60
# More than these are not looked for one by one in each message.
MANY = 16
# The document that says that messages of a partition key were parked.
ORDERED = "ordered"


@dataclass(frozen=True, slots=True)
class Control:
    """The decisions about one workflow: its documents by what their keys say after `control.`, and what they mean.

    `pauses` are those that count, `revision` is that of the newest document. `is_ordered`: messages of a partition key
    have been parked, so the next one has to look whether it comes behind them.
    """

    documents: Mapping[str, Mapping[str, Any]]
    branch: int = 0
    cancels: tuple[Decision, ...] = ()
    pauses: tuple[Decision, ...] = ()
    ancestors: frozenset[str] = frozenset()
    is_ordered: bool = False
    revision: int = 0
    family: Family = field(default_factory=Family, compare=False)

    def with_document(self, name: str, document: Mapping[str, Any] | None, *, revision: int = 0) -> Control:
        """The same with one document more, another one, or (None) one less."""
        documents = {**self.documents}
        documents.pop(name, None)
        if document is not None:
            documents[name] = {**document, "revision": revision}
        branch = documents.get(BRANCH, {}).get(BRANCH, 0)
        read = [Decision.of(one, one.get("revision", 0)) for one in documents.values()]
        decisions = [one for one in read if one is not None]
        counting = [one for one in decisions if one.is_active]
        return replace(
            self,
            documents=documents,
            branch=branch if isinstance(branch, int) else 0,
            cancels=tuple(one for one in counting if one.verb is Verb.CANCEL),
            pauses=tuple(one for one in counting if one.verb is Verb.PAUSE),
            ancestors=frozenset(one.message_id for one in counting if one.message_id is not None),
            is_ordered=ORDERED in documents or any(one.verb is Verb.PAUSE for one in decisions),
            revision=max(self.revision, revision),
        )

    def verdict(self, envelope: Envelope) -> str | None:
        """Why a message is set aside instead of handled; None when it is not."""
        branch = branch_of(envelope)
        if branch < self.branch:
            return f"of branch {branch}; the workflow was rolled back and goes on in branch {self.branch}"
        found = self._first(self.cancels, envelope)
        return None if found is None else found.told

    @property
    def is_paused_whole(self) -> bool:
        """Whether nothing of the newest branch may begin."""
        return any(one.message_id is None and one.branch >= self.branch for one in self.pauses)

    def paused(self, envelope: Envelope) -> Decision | None:
        """The pause that keeps a message from being handled now."""
        return self._first(self.pauses, envelope)

    def _first(self, decisions: Sequence[Decision], envelope: Envelope) -> Decision | None:
        for one in decisions:
            if branch_of(envelope) <= one.branch and (
                one.message_id is None or self.family.is_below(envelope, one.message_id)
            ):
                return one
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
        self._readers: dict[str, FamilyReader] = {}
        self._learning: set[asyncio.Task[None]] = set()
        self._needles: frozenset[bytes] = frozenset()
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
        await end(self._task, *self._learning)

    def of(self, workflow_id: str | None) -> Control | None:
        """The decisions about a workflow; None when there are none."""
        return self._by_workflow.get(workflow_id or "")

    def named(self, workflow: str) -> Control | None:
        """The decisions about a workflow by its token in keys and subjects."""
        return self.of(self._ids.get(workflow, workflow))

    async def keep_order(self, workflow_id: str) -> None:
        """Tells every replica that messages of a partition key of this workflow are parked. Raises BrokerError."""
        control = self.of(workflow_id)
        if control is None or not control.is_ordered:
            document = orjson.dumps({"workflow_id": workflow_id})
            await self._connection.patiently(
                lambda: self._records.write(f"{token(workflow_id)}.control.{ORDERED}", document, after=None)
            )

    def verdict(self, envelope: Envelope) -> str | None:
        """Why a message is set aside, None when it is not. The one look that every message pays."""
        control = self._by_workflow.get(envelope.workflow_id or "")
        return None if control is None else control.verdict(envelope)

    def check(self, envelope: Envelope) -> None:
        """Raises ToolError `tool.cancelled` for what would be done in the course of a message that is set aside."""
        if (why := self.verdict(envelope)) is not None:
            raise set_aside(envelope, why)

    def may_concern(self, data: bytes) -> bool:
        """Whether a message, by its bytes, may be of a workflow of which something was paused, or a part cancelled."""
        if not self._needles:
            return False
        return len(self._needles) > MANY or b"\\u" in data or any(needle in data for needle in self._needles)

    async def understand(self, envelope: Envelope) -> Control | None:
        """The decisions about a message's workflow, once it is known which of them concern it. Raises BrokerError."""
        control = self.of(envelope.workflow_id)
        if control is not None and control.ancestors:
            await self._reader(envelope.workflow_id or "", control).understand(envelope, control.ancestors)
        return control

    def _reader(self, workflow_id: str, control: Control) -> FamilyReader:
        reader = self._readers.get(workflow_id)
        if reader is None:
            reader = self._readers[workflow_id] = FamilyReader(self._connection, workflow_id, control.family)
        return reader

    async def _learn(self, workflow_id: str) -> None:
        """Reads who stands below what, then tells again, now that it can be said."""
        for _ in range(LEARN_TIMES):
            control = self._by_workflow.get(workflow_id)
            if control is None or self._decided is None:
                return
            try:
                await self._reader(workflow_id, control).read()
            except BrokerError as problem:
                log.debug("the history of workflow %s cannot be read: %s", workflow_id, problem.info.message)
                await asyncio.sleep(RETRY_S)
                continue
            return self._decided(workflow_id, self._by_workflow.get(workflow_id, NOTHING))

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
        known = self._by_workflow.get(workflow_id) or Control({})
        control = known.with_document(name, document, revision=record.revision)
        needle = orjson.dumps(workflow_id)[1:-1]
        if control.documents:
            self._by_workflow[workflow_id] = control
        else:
            self._by_workflow.pop(workflow_id, None)
            self._readers.pop(workflow_id, None)
        is_special = bool(control.ancestors) or control.is_ordered
        self._needles = self._needles | {needle} if is_special else self._needles - {needle}
        if self._decided is not None:
            self._decided(workflow_id, control)
            if control.ancestors:
                learning = self._connection.tasks.start(self._learn(workflow_id), name=f"family of {workflow_id}")
                self._learning.add(learning)
                learning.add_done_callback(self._learning.discard)


def set_aside(envelope: Envelope, why: str) -> BusError:
    """The error of what is done in the course of a message that is set aside."""
    return error(
        "tool.cancelled",
        f"{envelope.type} {envelope.message_id} is {why}; nothing more can be done in its course",
        reason="set_aside",
        branch=branch_of(envelope),
    )
