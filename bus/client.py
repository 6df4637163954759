"""The client: connect, send, watch, and look at what is there."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from bus.broker.connection import Connection
from bus.broker.provisioning import provision
from bus.calls.caller import Caller
from bus.calls.client import CallingClient
from bus.calls.guard import Guard
from bus.calls.tasks.client import TaskClient
from bus.config import Settings
from bus.contracts.upcast import Contracts
from bus.delivery.drafts import Draft, written
from bus.delivery.mending import Mending
from bus.delivery.message import as_json
from bus.delivery.middleware import PublishMiddleware
from bus.delivery.negotiation import Negotiation
from bus.delivery.outcome import Outcome, outcome_of
from bus.delivery.publisher import Publisher
from bus.delivery.span_status import span_status_told
from bus.delivery.workflow import Ending, Origin, Workflow
from bus.envelope import Envelope
from bus.envelope.grammar import is_agent_name
from bus.registry.peers import Peers
from bus.telemetry.context import TraceContext
from bus.telemetry.spans import Telemetry
from bus.trust.budget import Budget
from bus.workflow.artifacts import Artifacts
from bus.workflow.control import ControlWatch
from bus.workflow.phases import Phases
from bus.workflow.recorded import find_workflows, read_records
from bus.workflow.sightings import Sighting, sightings
from bus.workflow.story import Story, tell

log = logging.getLogger("bus.client")


class Bus(CallingClient, TaskClient):
    """A client of the bus. Open it with `async with Bus.connect(...)`."""

    def __init__(
        self,
        connection: Connection,
        telemetry: Telemetry,
        name: str,
        guard: Guard,
        middleware: Sequence[PublishMiddleware] = (),
        negotiation: Negotiation | None = None,
    ) -> None:
        self.name = name
        self.connection = connection
        self.artifacts = Artifacts(connection)
        self.dead_letters = Mending(connection)
        self._telemetry = telemetry
        self._publisher = Publisher(connection, telemetry, middleware=middleware, negotiation=negotiation)
        super().__init__(Caller(connection, telemetry, name, guard))
        self._control = ControlWatch(connection)
        self._ending = Ending()

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
            guard = await stack.enter_async_context(Guard(connection, name, instance=telemetry.instance_id))
            bus = cls(connection, telemetry, name, guard, middleware, Negotiation(peers, contracts))
            stack.push_async_callback(bus._caller.close)
            stack.push_async_callback(bus._control.stop)
            stack.push_async_callback(bus._ending.wait)
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
        from now. For a workflow that may have been rolled back use `workflow(..., workflow_id=...)`, which knows the
        branch. A payload of a model with a `__contract__` says so in the extension `schema`. Raises
        `broker.unavailable`, `broker.full`, `registry.no_common_version`, `protocol.too_large`, and
        `protocol.malformed` for a field that the envelope refuses.
        """
        return await self._publisher.publish(
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
            )
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

    def workflow(
        self,
        name: str,
        *,
        session_id: str | None = None,
        workflow_id: str | None = None,
        after: str | None = None,
        budget: Budget | None = None,
        phases: Phases | None = None,
        record: bool = False,
    ) -> Workflow:
        """Begins a workflow: everything sent through it and caused by that shares its id and trace.

        With a `workflow_id` it goes on with that one in a new trace, for example when a person has answered after
        hours; `after` is the `Message.traceparent` of what asked, and links the two traces to each other. `budget` is
        what all of it together may use up; the bus counts it over all replicas, and stops what goes beyond.
        `phases` are its phases in their order, with their limits. `record` keeps what its calls are answered, for
        `bus workflow replay`.
        """
        return Workflow(
            Origin(self._publisher, self._control, self._ending, self._caller.accounts, self._telemetry),
            name,
            session_id=session_id,
            workflow_id=workflow_id,
            after=after,
            budget=budget,
            phases=phases,
            record=record,
        )

    def watch(
        self,
        *,
        workflow_id: str | None = None,
        agent: str | None = None,
        type: str | None = None,
        since: datetime | None = None,
        follow: bool = True,
    ) -> AsyncGenerator[Sighting, None]:
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
