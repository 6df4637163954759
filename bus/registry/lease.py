"""One replica's lease: that it lives, and what it accepts, where senders and other replicas can see it (REG-9)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from datetime import UTC, datetime
from typing import Any

import orjson

from bus.broker.connection import Connection
from bus.broker.records import Records
from bus.broker.streams import StreamNames
from bus.broker.tasks import end
from bus.contracts.accepts import Accepts
from bus.envelope import new_message_id
from bus.errors import BusError

log = logging.getLogger("bus.registry")

ACCEPTS = "accepts"
EVERY = f"{ACCEPTS}.>"
REMOVED_TTL_S = 60
FIRST_S = 2.0
LAST_S = 2.0


def registry_of(connection: Connection) -> Records:
    """The bucket of the registry."""
    return Records(connection, StreamNames.of(connection.settings.namespace).registry, writer="")


def owner(key: str) -> tuple[str, str]:
    """The agent and the replica that a key names."""
    _, agent, replica = (*key.split(".", 2), "", "")[:3]
    return agent, replica


class Lease:
    """The lease of one replica, renewed every `heartbeat_s` until `release`. The key is `accepts.<agent>.<replica>`."""

    def __init__(self, connection: Connection, agent: str, accepts: Accepts) -> None:
        settings = connection.settings
        self.replica = new_message_id()
        self._connection = connection
        self._agent = agent
        self._leases = registry_of(connection)
        self._key = f"{ACCEPTS}.{agent}.{self.replica}"
        self._ttl_s = round(settings.lease_ttl_s)
        self._heartbeat_s = settings.heartbeat_s
        self._value = orjson.dumps(self._record(accepts))
        self._due = asyncio.Event()
        self._renewed_at = time.monotonic()
        self._task: asyncio.Task[None] | None = None

    @property
    def age_s(self) -> float:
        """Seconds since it was last renewed, or since this began; at `lease_ttl_s` others take the replica for gone."""
        return time.monotonic() - self._renewed_at

    async def take(self) -> None:
        """Makes the replica known and keeps it so. A bucket that is away is tried again and delays nobody for long."""
        if not await self._renew(FIRST_S):
            log.warning(
                "%s runs, but others do not know yet what it accepts; trying again every %.0f s",
                self._agent,
                self._heartbeat_s,
            )
        self._connection.on_reconnect(self._due.set)
        self._task = asyncio.create_task(self._keep(), name=f"lease of {self._agent}")

    async def release(self) -> None:
        """Ends the lease at once, so that nobody counts on this replica. Bounded; a second call does nothing."""
        if self._task is None:
            return
        self._connection.remove_listener(self._due.set)
        await end(self._task)
        self._task = None
        try:
            async with asyncio.timeout(LAST_S):
                await self._leases.take_away(self._key, ttl_s=REMOVED_TTL_S)
        except (BusError, TimeoutError) as problem:
            log.debug("the lease of %s ends by itself: %s", self._agent, problem)

    async def _keep(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._heartbeat_s):
                    await self._due.wait()
            self._due.clear()
            await self._renew(self._heartbeat_s)

    async def _renew(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._leases.write(self._key, self._value, ttl_s=self._ttl_s, after=None)
        except (BusError, TimeoutError) as problem:
            log.debug("the lease of %s is not renewed: %s", self._agent, problem)
            return False
        self._renewed_at = time.monotonic()
        return True

    def _record(self, accepts: Accepts) -> dict[str, Any]:
        return {
            "agent": self._agent,
            "replica": self.replica,
            "started_at": datetime.now(UTC).isoformat(),
            "ttl_s": self._ttl_s,
            "accepts": accepts.to_wire(),
        }
