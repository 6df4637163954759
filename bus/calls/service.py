"""The service: everything that one replica needs to be called, in the order of its start and stop."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from bus.broker.connection import Connection
from bus.calls.announcement import Announcement
from bus.calls.answers import Answers
from bus.calls.call import Publish
from bus.calls.caller import Caller
from bus.calls.capability import Capability
from bus.calls.execution import Check, Execution
from bus.calls.guard import Guard
from bus.calls.line import Line
from bus.calls.micro import Micro
from bus.calls.registry import Registration
from bus.calls.responder import Responder
from bus.calls.tasks.runner import Attempts, Runner
from bus.envelope import SUPPORTED, Envelope
from bus.errors import ErrorInfo
from bus.telemetry.spans import Telemetry
from bus.workflow.artifacts import Artifacts
from bus.workflow.control import Control, set_aside

log = logging.getLogger("bus.calls")


class Service:
    """The capabilities of one replica: the responder answers before the registry names it, and longer.

    `accepts` is what the announcement says about message contracts, `handles` names the message types for people.
    Without capabilities and `accepts` only the discovery of the NATS tools is answered, and `caller` still calls.
    """

    def __init__(
        self,
        connection: Connection,
        telemetry: Telemetry,
        *,
        agent: str,
        capabilities: Mapping[str, Capability],
        checks: Sequence[Check],
        concurrency: int,
        publish: Publish,
        attempts: Attempts,
        guard: Guard,
        accepts: Mapping[str, Any] | None = None,
        handles: Sequence[str] = (),
    ) -> None:
        instance = uuid.uuid4().hex
        self.caller = Caller(connection, telemetry, agent, guard)
        self._agent = agent
        self._is_needed = bool(capabilities or accepts)
        artifacts = Artifacts(connection)
        answers = Answers(agent, artifacts, inline_limit=connection.settings.inline_limit)
        execution = Execution(
            connection,
            agent=agent,
            instance=instance,
            capabilities=capabilities,
            checks=checks,
            caller=self.caller,
            publish=publish,
            artifacts=artifacts,
            accounts=self.caller.accounts,
            answers=answers,
            submission=self.caller.submission,
            rules=guard.rules,
        )
        line = Line(connection, telemetry, execution, answers, guard.witness, agent=agent)
        self.tasks = Runner(
            connection,
            line,
            agent=agent,
            instance=instance,
            capabilities=capabilities,
            attempts=attempts,
            offers=self.caller.registered,
        )
        self._responder = Responder(connection, line, agent=agent, instance=instance, concurrency=concurrency)
        if capabilities:
            telemetry.metrics.calls.serve(capabilities, self._responder)
        cards = tuple(capabilities[name].card for name in sorted(capabilities))
        announcement = Announcement(agent, tuple(sorted(SUPPORTED)), cards, accepts or {})
        self._registration = Registration(connection, announcement, instance=instance)
        self._micro = None
        if connection.settings.micro:
            tally = telemetry.metrics.calls.tally
            self._micro = Micro(connection, agent=agent, instance=instance, cards=cards, handles=handles, tally=tally)

    @property
    def in_flight(self) -> int:
        """How many calls it has in hand."""
        return self._responder.in_flight

    def hurry(self) -> None:
        """Ends the grace of a drain, now or when it begins."""
        self._responder.hurry()

    def decided(self, workflow_id: str, control: Control) -> None:
        """Hears what was decided about a workflow; calls that run against that are ended."""

        def why(envelope: Envelope) -> ErrorInfo | None:
            found = control.verdict(envelope) if envelope.workflow_id == workflow_id else None
            return None if found is None else set_aside(envelope, found).info

        self._responder.end_those(why)

    async def start(self) -> None:
        """Begins to answer, then registers. Raises BrokerError and RegistryError."""
        if self._is_needed:
            await self.tasks.start()
            await self._responder.start()
            await self._registration.start()
        if self._micro is not None:
            await self._micro.start()

    async def drain(self, grace_s: float) -> None:
        """Deregisters, finishes what is in hand within `grace_s`, and answers the rest."""
        await self._hide()
        if self._is_needed:
            await self._registration.stop()
            if ended := await self._responder.drain(grace_s):
                log.warning("%s ended %d calls that were still in hand", self._agent, ended)

    async def close(self) -> None:
        """Stops whatever still runs, without grace; a second call does nothing."""
        await self._hide()
        await self._registration.stop()
        await self._responder.close()
        await self.tasks.close()
        await asyncio.shield(self.caller.close())

    async def _hide(self) -> None:
        if self._micro is not None:
            await self._micro.stop()
