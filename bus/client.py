"""The client: connect, send, watch, and look at what is there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel

from bus.broker.connection import Connection
from bus.broker.streams import provision
from bus.calls.asked import MAX_REPAIRS
from bus.calls.caller import Caller
from bus.calls.directory import Capabilities
from bus.calls.draft import CallDraft
from bus.config import Settings
from bus.contracts.result import Result
from bus.contracts.upcast import Contracts
from bus.delivery.drafts import Draft, written
from bus.delivery.mending import Mending
from bus.delivery.message import as_json
from bus.delivery.middleware import PublishMiddleware
from bus.delivery.negotiation import Negotiation
from bus.delivery.outcome import Outcome, outcome_of
from bus.delivery.publisher import Publisher
from bus.delivery.span_status import span_status_told
from bus.delivery.workflow_trace import WorkflowTrace
from bus.envelope import Envelope, new_message_id, new_trace_id
from bus.envelope.grammar import is_agent_name
from bus.errors import BusError
from bus.registry.peers import Peers
from bus.telemetry.context import TraceContext
from bus.telemetry.spans import Telemetry
from bus.trust.budget import Account, Budget, share
from bus.workflow.artifacts import Artifacts
from bus.workflow.recorded import find_workflows, read_records
from bus.workflow.recording import RECORDED
from bus.workflow.sightings import Sighting, sightings
from bus.workflow.state import WorkflowState
from bus.workflow.story import Story, tell

log = logging.getLogger("bus.client")

# The broker's clock may be behind ours.
CLOCK_MARGIN = timedelta(minutes=2)
# The account that a workflow's own budget is counted in.
ACCOUNT = "workflow"


class Bus:
    """A client of the bus. Open it with `async with Bus.connect(...)`."""

    def __init__(
        self,
        connection: Connection,
        telemetry: Telemetry,
        name: str,
        middleware: Sequence[PublishMiddleware] = (),
        negotiation: Negotiation | None = None,
    ) -> None:
        self.name = name
        self.connection = connection
        self.artifacts = Artifacts(connection)
        self.dead_letters = Mending(connection)
        self._telemetry = telemetry
        self._publisher = Publisher(connection, telemetry, middleware=middleware, negotiation=negotiation)
        self._caller = Caller(connection, telemetry, name)
        self.capabilities = Capabilities(self._caller.directory)

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(
        cls,
        name: str = "client",
        *,
        settings: Settings | None = None,
        middleware: Sequence[PublishMiddleware] = (),
        contracts: Sequence[Contracts] = (),
        **overrides: Any,
    ) -> AsyncIterator[Bus]:
        """Connects as `name`, the sender of what is sent, and closes on exit.

        Settings come from the environment and keyword arguments (`servers="nats://..."`). Without servers it starts
        or joins the embedded broker. `middleware` wraps every send; `contracts` have the downcasters for receivers
        that are older. Raises BrokerError `broker.unavailable`, SettingsError, ValueError for a name that is not an
        agent name or for two downcasters of one step.
        """
        if not is_agent_name(name):
            raise ValueError(f"{name!r} is not an agent name: 1 to 64 letters, digits, _ and -")
        settings = Settings.chosen(settings, overrides)
        async with contextlib.AsyncExitStack() as stack:
            telemetry = Telemetry(name, namespace=settings.namespace)
            stack.push_async_callback(telemetry.close)
            connection = await Connection.open(settings, name=name)
            stack.push_async_callback(connection.close)
            for difference in await provision(connection):
                log.warning("%s", difference)
            await stack.enter_async_context(span_status_told(connection, telemetry))
            peers = Peers(connection)
            stack.push_async_callback(peers.stop)
            bus = cls(connection, telemetry, name, middleware, Negotiation(peers, contracts))
            stack.push_async_callback(bus._caller.close)
            yield bus

    async def send(
        self,
        to: str,
        type: str,
        payload: BaseModel | dict[str, Any] | Any,
        *,
        workflow_id: str | None = None,
        session_id: str | None = None,
        phase: str | None = None,
        role: str | None = None,
        status: str | None = None,
        message_id: str | None = None,
        extensions: Mapping[str, Any] | None = None,
        delay_s: float | None = None,
    ) -> Envelope:
        """Sends one message to an agent, or to all with `to="*"`; returns its envelope once it is stored.

        Send again with the same `message_id` and it counts once. `extensions` may name `priority`, `partition_key`,
        `expires_at` and `deliver_at` (a datetime with a zone, or RFC 3339); `delay_s` is a `deliver_at` counted
        from now. A payload of a model with a `__contract__` says so in the extension `schema`. Raises
        `broker.unavailable`, `broker.full`, `registry.no_common_version`, `protocol.too_large`, and
        `protocol.malformed` for a field that the envelope refuses.
        """
        return await self._send(
            Envelope(
                sender=self.name,
                to=to,
                type=type,
                message_id=message_id,
                workflow_id=workflow_id,
                session_id=session_id,
                phase=phase,
                role=role,
                status=status,
                extensions=written(extensions, delay_s, type, payload),
                payload=as_json(payload),
            ),
            None,
        )

    async def send_many(
        self, drafts: Iterable[Draft], *, workflow_id: str | None = None, session_id: str | None = None
    ) -> list[Envelope]:
        """Sends several messages at once; returns their envelopes once all are stored.

        When some could not be stored, the others are, and it raises one error whose `info.details["failed"]` lists
        them by `index` and `message_id`; errors otherwise as `send`.
        """
        envelopes = [
            Envelope(
                sender=self.name,
                to=draft.to,
                type=draft.type,
                message_id=draft.message_id,
                workflow_id=workflow_id,
                session_id=session_id,
                phase=draft.phase,
                role=draft.role,
                status=draft.status,
                extensions=written(draft.extensions, draft.delay_s, draft.type, draft.payload),
                payload=as_json(draft.payload),
            )
            for draft in drafts
        ]
        await self._publisher.publish_many(envelopes)
        return envelopes

    async def call(
        self,
        capability: str,
        arguments: BaseModel | dict[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        agent: str | None = None,
        version: str | None = None,
        idempotency_key: str | None = None,
        retries: int = 2,
        repairs_left: int = MAX_REPAIRS,
        max_result_bytes: int | None = None,
        validate: bool = False,
        workflow_id: str | None = None,
        session_id: str | None = None,
    ) -> Result:
        """Calls a capability and returns its result, whose `data` is what it came to.

        It ends within `timeout_s`, by default the card's, or `call_timeout_s` where that is longer. `agent` names who
        shall answer, `version` (`1`, `1.2`, `1.2.3`) what it must be compatible with. Calls that nobody began go to
        another agent; what may have run is tried again, up to `retries` times, only where the capability is idempotent
        or the call has an `idempotency_key`, under which the result is stored and given again. `validate` checks the
        arguments before they are sent; the callee does in any case. A result of more than `max_result_bytes` is cut,
        `result.meta["whole"]` says where all of it is. After a `tool.validation_failed` pass on its
        `details["repairs_left"]` with the mended arguments.

        Raises RegistryError (nobody offers it, no common version), ToolError (busy, unavailable, timeout, failed),
        Rejected (`tool.validation_failed` with every path, the schema, and an instruction for a model) and BrokerError.
        """
        return await self._caller.call(
            capability,
            arguments,
            timeout_s=timeout_s,
            agent=agent,
            version=version,
            idempotency_key=idempotency_key,
            retries=retries,
            repairs_left=repairs_left,
            max_result_bytes=max_result_bytes,
            validate=validate,
            workflow_id=workflow_id,
            session_id=session_id,
        )

    async def call_many(self, drafts: Sequence[CallDraft], *, in_flight: int = 64) -> dict[str, Result]:
        """Makes several calls at once, `in_flight` at a time; every one has a result, also when it failed.

        The results are in the order of the drafts, by the draft's `id`, or its index as text. Raises ValueError for two
        drafts with one id; never a failure of a call.
        """
        return await self._caller.ask_many(drafts, in_flight=in_flight)

    async def notify(
        self, capability: str, arguments: BaseModel | dict[str, Any] | None = None, *, agent: str | None = None
    ) -> str:
        """Calls without waiting for a result, and nobody tells whether it arrived; returns the id of the call.

        Raises RegistryError when nobody offers the capability. For work that must not be lost, use `send`.
        """
        return await self._caller.notify(CallDraft(capability, arguments, agent=agent))

    def workflow(
        self,
        name: str,
        *,
        session_id: str | None = None,
        workflow_id: str | None = None,
        after: str | None = None,
        budget: Budget | None = None,
        record: bool = False,
    ) -> Workflow:
        """Begins a workflow: everything sent through it and caused by that shares its id and trace.

        With a `workflow_id` it goes on with that one in a new trace, for example when a person has answered after
        hours; `after` is the `Message.traceparent` of what asked, and links the two traces to each other. `budget` is
        what all of it together may use up; the bus counts it over all replicas, and stops what goes beyond. `record`
        keeps what its calls are answered, for `bus workflow replay`.
        """
        return Workflow(
            self, name, session_id=session_id, workflow_id=workflow_id, after=after, budget=budget, record=record
        )

    def watch(
        self,
        *,
        workflow_id: str | None = None,
        agent: str | None = None,
        type: str | None = None,
        since: datetime | None = None,
        follow: bool = True,
    ) -> AsyncIterator[Sighting]:
        """What passes on the bus: messages, broadcasts, dead letters, in the order of arrival.

        Begins at `since`, else now; ends never, or with `follow=False` at what is stored now. Filters are exact;
        `agent` matches the sender or the receiver.
        """
        return sightings(self.connection, workflow_id=workflow_id, agent=agent, type=type, since=since, follow=follow)

    async def outcome(self, sent: Envelope, *, timeout_s: float = 30.0) -> Outcome:
        """Waits for what becomes of a message that was just sent: a reply, a dead letter, or its completion.

        An outcome with nothing set means that none of these came within `timeout_s`. Raises BrokerError.
        """
        return await outcome_of(self.connection, sent, timeout_s=timeout_s)

    async def trace(self, workflow_id: str, *, since: datetime | None = None) -> Story:
        """The story of a workflow: its messages by causation, their times, and what it waits for now.

        Works while it runs and after, as long as the history is kept. It is read from `since` on, else from the time
        in the id (a UUIDv7), else from the beginning. `steps` is empty when nothing is known. Raises BrokerError.
        """
        return tell(await read_records(self.connection, workflow_id, since=since))

    async def workflows(self, *, since: datetime | None = None) -> list[str]:
        """The ids of the workflows that the history knows of, at most 50,000, the newest last. Raises BrokerError."""
        return await find_workflows(self.connection, since=since)

    async def _send(self, envelope: Envelope, parent: TraceContext | None) -> Envelope:
        return await self._publisher.publish(envelope, parent=parent)


class Workflow:
    """One workflow, begun by `Bus.workflow`. Its root span is `invoke_workflow NAME`, ended at the first send.

    `async with bus.workflow("brief") as workflow:` also closes it with a summary span; see `finish`.
    """

    def __init__(
        self,
        bus: Bus,
        name: str,
        *,
        session_id: str | None,
        workflow_id: str | None = None,
        after: str | None = None,
        budget: Budget | None = None,
        record: bool = False,
    ) -> None:
        self.id = new_message_id() if workflow_id is None else workflow_id
        self.trace_id = new_trace_id()
        self.name = name
        self.session_id = session_id
        self.budget = budget
        self._is_recorded = record
        self._budget_on_wire = {} if budget is None else {**budget.to_wire(), "account": ACCOUNT}
        self.started_at = datetime.now(UTC)
        self._bus = bus
        self._trace = WorkflowTrace(
            bus._telemetry, name, workflow_id=self.id, trace_id=self.trace_id, session_id=session_id, after=after
        )

    async def __aenter__(self) -> Workflow:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, problem: BaseException | None, _: object) -> None:
        if problem is None:
            self.finish()
        elif isinstance(problem, asyncio.CancelledError | KeyboardInterrupt | GeneratorExit):
            self.finish("cancelled")
        else:
            code = problem.info.code if isinstance(problem, BusError) else type(problem).__qualname__
            self.finish("error", error=code)

    def finish(self, status: str = "success", *, error: str | None = None) -> None:
        """Closes the workflow's story: a summary span `workflow NAME` from its beginning to now, with the status.

        For the one who knows the end: success, error (with its code) or cancelled. Leaving `async with workflow` does
        it too. It stops nothing; a second call, and a call before anything was sent, do nothing. Raises ValueError
        for another status.
        """
        self._trace.finish(status, error=error)

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
        """Sends a message of this workflow; errors as `Bus.send`."""
        draft = Draft(to, type, payload, phase, role, None, None, message_id, extensions, delay_s)
        envelope = self._compose(draft)
        await self._pay(messages=1)
        return await self._bus._send(envelope, self._trace.begun())

    async def send_many(self, drafts: Iterable[Draft]) -> list[Envelope]:
        """Sends several messages of this workflow at once; errors as `Bus.send_many`."""
        envelopes = [self._compose(draft) for draft in drafts]
        await self._pay(messages=len(envelopes))
        await self._bus._publisher.publish_many(envelopes, parent=self._trace.begun())
        return envelopes

    async def _pay(self, *, messages: int) -> None:
        if self.budget is not None and self.budget.limits:
            account = Account(ACCOUNT, self.budget.limits, ())
            await self._bus._caller.accounts.pay(account, self.id, messages=messages)

    def _compose(self, draft: Draft) -> Envelope:
        extensions = written(draft.extensions, draft.delay_s, draft.type, draft.payload)
        if self.budget is not None:
            given = (extensions or {}).get("budget", {})
            extensions = {**(extensions or {}), "budget": share(self._budget_on_wire, given)}
        if self._is_recorded:
            extensions = {**(extensions or {}), RECORDED: True}
        return Envelope(
            sender=self._bus.name,
            to=draft.to,
            type=draft.type,
            message_id=draft.message_id,
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
        return self._bus.watch(workflow_id=self.id, since=self.started_at - CLOCK_MARGIN)

    @property
    def state(self) -> WorkflowState:
        """The documents that all agents of this workflow share."""
        return WorkflowState(self._bus.connection, self.id)
