"""The watch over calls that wait: whether anybody still has them, and that nobody waits any more."""

from __future__ import annotations

import asyncio
import time

from bus.broker.connection import Connection
from bus.broker.requests import Flight
from bus.broker.tasks import end
from bus.calls.control import ALL, Verb, Word, is_lost
from bus.calls.directory import Directory
from bus.errors import BusError, error

PROBE_AFTER_S = 1.0
SLOWEST_PROBE_S = 5.0
PROBES = 32
SWEEP_S = 0.25


class Watch:
    """Ends the flights whose replica has died, about two seconds after that; asks the broker, not a clock."""

    def __init__(self, connection: Connection, directory: Directory, name: str) -> None:
        self._connection = connection
        self._directory = directory
        self._name = name
        self._flights: dict[Flight, tuple[str, str, float]] = {}
        self._probes: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.Task[None] | None = None

    def begin(self, agent: str, call_id: str) -> Flight:
        """Watches over one call to an agent from now on."""
        flight = Flight()
        self._flights[flight] = (agent, call_id, time.monotonic())
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep(), name=f"calls of {self._name}")
        return flight

    def end(self, flight: Flight) -> None:
        """Watches over it no more."""
        del self._flights[flight]

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
        asked_at: dict[Flight, float] = {}
        while True:
            await asyncio.sleep(SWEEP_S)
            now = time.monotonic()
            asked_at = {flight: at for flight, at in asked_at.items() if flight in self._flights}
            for flight, (agent, call_id, since) in list(self._flights.items()):
                pause_s = max(PROBE_AFTER_S, min(SLOWEST_PROBE_S, (now - since) / 4))
                due = now - asked_at.get(flight, since) >= pause_s
                if due and len(self._probes) < PROBES and self._connection.is_connected:
                    asked_at[flight] = now
                    probe = asyncio.create_task(self._probe(flight, agent, call_id))
                    self._probes.add(probe)
                    probe.add_done_callback(self._probes.discard)

    async def _probe(self, flight: Flight, agent: str, call_id: str) -> None:
        instances = self._directory.index.instances(agent)
        if await is_lost(self._connection, agent, instances, sender=self._name, tool_call_id=call_id):
            flight.fail(
                error("agent.unavailable", f"the replica of {agent} that had the call is gone; it may have run")
            )
