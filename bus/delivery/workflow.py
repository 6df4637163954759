"""The workflow as its client sees it: begun by `Bus.workflow`, with a record from its first send to its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel

from bus.broker.connection import Connection
from bus.delivery.drafts import Draft, written
from bus.delivery.message import as_json
from bus.delivery.publisher import Publisher
from bus.delivery.workflow_trace import WorkflowTrace
from bus.envelope import Envelope, new_message_id, new_trace_id
from bus.errors import BusError
from bus.telemetry.spans import Telemetry
from bus.trust.accounts import Accounts
from bus.trust.budget import Account, Budget, share
from bus.workflow.branches import BRANCH, id_in_branch
from bus.workflow.control import ControlWatch
from bus.workflow.handle import WorkflowHandle
from bus.workflow.phases import Phases
from bus.workflow.record import WorkflowRecord
from bus.workflow.recording import RECORDED
from bus.workflow.sightings import Sighting, sightings

log = logging.getLogger("bus.client")

# The broker's clock may be behind ours.
CLOCK_MARGIN = timedelta(minutes=2)
END_S = 5.0
# The account that a workflow's own budget is counted in.
ACCOUNT = "workflow"


class Ending:
    """The ends of workflows that are being written, so that a client that leaves writes them first."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(
        self, handle: WorkflowHandle, connection: Connection, status: str, error: str | None
    ) -> asyncio.Task[None]:
        """Writes the end of a workflow into its record; what fails is told in the log."""
        task = connection.tasks.start(_end(handle, status, error), name=f"end of workflow {handle.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def wait(self) -> None:
        """Waits for all of them; bounded."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_S)


async def _end(handle: WorkflowHandle, status: str, error: str | None) -> None:
    try:
        async with asyncio.timeout(END_S):
            await handle.end(status, error=error)
    except (BusError, TimeoutError) as problem:
        log.warning("the record of workflow %s does not say that it ended (%s): %s", handle.id, status, problem)


@dataclass(frozen=True, slots=True)
class Origin:
    """What a client lends to the workflows that it begins."""

    publisher: Publisher
    control: ControlWatch
    ending: Ending
    accounts: Accounts
    telemetry: Telemetry


class Workflow(WorkflowHandle):
    """One workflow, begun by `Bus.workflow`. Its root span is `invoke_workflow NAME`, ended at the first send.

    `async with bus.workflow("brief") as workflow:` also closes it, with a summary span and in its record; see `finish`.
    """

    __slots__ = (
        "_begin_once",
        "_budget_on_wire",
        "_finished",
        "_is_begun",
        "_is_recorded",
        "_origin",
        "_phases",
        "_trace",
        "budget",
        "name",
        "session_id",
        "started_at",
        "trace_id",
    )

    def __init__(
        self,
        origin: Origin,
        name: str,
        *,
        session_id: str | None = None,
        workflow_id: str | None = None,
        after: str | None = None,
        budget: Budget | None = None,
        phases: Phases | None = None,
        record: bool = False,
    ) -> None:
        connection = origin.publisher.connection
        super().__init__(
            connection,
            new_message_id() if workflow_id is None else workflow_id,
            branch=None,
            writer=f"{connection.name} (client)",
        )
        self.session_id = session_id
        self.budget = budget
        self._budget_on_wire = {} if budget is None else {**budget.to_wire(), "account": ACCOUNT}
        self.trace_id = new_trace_id()
        self.name = name
        self.started_at = datetime.now(UTC)
        self._origin = origin
        self._phases = phases
        self._is_recorded = record
        self._is_begun = False
        self._begin_once = asyncio.Lock()
        self._finished: asyncio.Task[None] | None = None
        self._trace = WorkflowTrace(
            origin.telemetry, name, workflow_id=self.id, trace_id=self.trace_id, session_id=session_id, after=after
        )

    async def __aenter__(self) -> Workflow:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, problem: BaseException | None, _: object) -> None:
        if problem is None:
            ended = self.finish()
        elif isinstance(problem, asyncio.CancelledError | KeyboardInterrupt | GeneratorExit):
            ended = self.finish("cancelled")
        else:
            code = problem.info.code if isinstance(problem, BusError) else type(problem).__qualname__
            ended = self.finish("error", error=code)
        await asyncio.shield(ended)

    def finish(self, status: str = "success", *, error: str | None = None) -> asyncio.Future[None]:
        """Ends the workflow: in its record, and with a summary span `workflow NAME` from its beginning to now.

        For the one who knows the end: success, error (with its code) or cancelled. Leaving `async with workflow` does
        it too. The record is written in the background, at the latest before the client leaves; await what this
        returns to know that it is. It stops nothing; a second call, and a call before anything was sent, do nothing.
        Raises ValueError for another status.
        """
        self._trace.finish(status, error=error)
        if self._finished is None and self._is_begun:
            self._finished = self._origin.ending.start(self, self._connection, status, error)
        if self._finished is None:
            nothing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            nothing.set_result(None)
            return nothing
        return self._finished

    async def send(
        self,
        to: str,
        type: str,
        payload: BaseModel | dict[str, Any] | Any,
        *,
        phase: str | None = None,
        role: str | None = "user",
        message_id: str | None = None,
        extensions: Mapping[str, Any] | None = None,
        delay_s: float | None = None,
    ) -> Envelope:
        """Sends a message of this workflow; the first one begins its record. Errors as `Bus.send`.

        Raises ToolError `tool.cancelled` once a person has cancelled it.
        """
        await self._begin()
        draft = Draft(to, type, payload, phase, role, None, None, message_id, extensions, delay_s)
        envelope = self._compose(draft)
        self._origin.control.check(envelope)
        await self._pay(messages=1)
        return await self._origin.publisher.publish(envelope, parent=self._trace.begun())

    async def send_many(self, drafts: Iterable[Draft]) -> list[Envelope]:
        """Sends several messages of this workflow at once; errors as `Bus.send_many`."""
        await self._begin()
        envelopes = [self._compose(draft) for draft in drafts]
        for envelope in envelopes:
            self._origin.control.check(envelope)
        await self._pay(messages=len(envelopes))
        await self._origin.publisher.publish_many(envelopes, parent=self._trace.begun())
        return envelopes

    async def _begin(self) -> None:
        if self._is_begun:
            return
        async with self._begin_once:
            if not self._is_begun:
                await self._origin.control.start()
                self._origin.control.check(self._compose(Draft("*", "begin", {})))
                await self._records.begin(
                    lambda by: WorkflowRecord.begun(self.id, self.name, by, phases=self._phases), goes_on=True
                )
                self._is_begun = True

    async def _pay(self, *, messages: int) -> None:
        if self.budget is not None and self.budget.limits:
            account = Account(ACCOUNT, self.budget.limits, ())
            await self._origin.accounts.pay(account, self.id, messages=messages)

    def _compose(self, draft: Draft) -> Envelope:
        extensions = written(draft.extensions, draft.delay_s, draft.type, draft.payload)
        if self.budget is not None:
            given = (extensions or {}).get("budget", {})
            extensions = {**(extensions or {}), "budget": share(self._budget_on_wire, given)}
        if self._is_recorded:
            extensions = {**(extensions or {}), RECORDED: True}
        message_id = draft.message_id
        control = self._origin.control.of(self.id)
        if control is not None and control.branch:
            extensions = {BRANCH: control.branch, **(extensions or {})}
            message_id = message_id and id_in_branch(message_id, control.branch)
        return Envelope(
            sender=self._connection.name,
            to=draft.to,
            type=draft.type,
            message_id=message_id,
            trace_id=self.trace_id,
            workflow_id=self.id,
            session_id=self.session_id,
            phase=draft.phase,
            role=draft.role,
            status=draft.status,
            extensions=extensions,
            payload=as_json(draft.payload),
        )

    def watch(self) -> AsyncIterator[Sighting]:
        """Everything that passes in this workflow, from its beginning, without end."""
        since = self.started_at - CLOCK_MARGIN
        return sightings(self._connection, workflow_id=self.id, agent=None, type=None, since=since, follow=True)
