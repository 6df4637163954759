"""The watch over calls that wait: whether anybody still has them, and that nobody waits any more."""

from __future__ import annotations

import asyncio
import time

from bus.broker.connection import Connection
from bus.broker.parser import Arrival
from bus.broker.tasks import end
from bus.calls.control import ALL, Verb, Word, is_lost
from bus.calls.directory import Directory
from bus.errors import BusError, error

PROBE_AFTER_S = 1.0
SLOWEST_PROBE_S = 5.0
PROBES = 32
SWEEP_S = 0.25


Answer = asyncio.Future[Arrival]


class Watch:
    """Ends the calls whose replica has died, about two seconds after that; asks the broker, not a clock."""

    def __init__(self, connection: Connection, directory: Directory, name: str) -> None:
        self._connection = connection
        self._directory = directory
        self._name = name
        self._waiting: dict[Answer, tuple[str, str, float]] = {}
        self._probes: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.Task[None] | None = None

    def begin(self, answer: Answer, agent: str, call_id: str) -> None:
        """Watches over one call to an agent from now on; `answer` fails when its replica is gone."""
        self._waiting[answer] = (agent, call_id, time.monotonic())
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep(), name=f"calls of {self._name}")

    def end(self, answer: Answer) -> None:
        """Watches over it no more."""
        self._waiting.pop(answer, None)

    async def cancel(self, agent: str, call_id: str) -> None:
        """Tells every replica of the agent that nobody waits for the call any more."""
        subject = self._connection.subjects.control(agent, ALL, self._name)
        try:
            await self._connection.publish(subject, Word(Verb.CANCEL, call_id).encode())
        except BusError:
            return  # Its deadline ends it.

    async def close(self) -> None:
        """Stops watching; a second call does nothing."""
        await end(self._sweeping, *self._probes)

    async def _sweep(self) -> None:
        asked_at: dict[Answer, float] = {}
        while True:
            await asyncio.sleep(SWEEP_S)
            now = time.monotonic()
            asked_at = {answer: at for answer, at in asked_at.items() if answer in self._waiting}
            for answer, (agent, call_id, since) in list(self._waiting.items()):
                pause_s = max(PROBE_AFTER_S, min(SLOWEST_PROBE_S, (now - since) / 4))
                due = now - asked_at.get(answer, since) >= pause_s
                if due and len(self._probes) < PROBES and self._connection.is_connected:
                    asked_at[answer] = now
                    probe = asyncio.create_task(self._probe(answer, agent, call_id))
                    self._probes.add(probe)
                    probe.add_done_callback(self._probes.discard)

    async def _probe(self, answer: Answer, agent: str, call_id: str) -> None:
        instances = self._directory.index.instances(agent)
        lost = await is_lost(self._connection, agent, instances, sender=self._name, tool_call_id=call_id)
        if lost and not answer.done():
            answer.set_exception(
                error("agent.unavailable", f"the replica of {agent} that had the call is gone; it may have run")
            )
