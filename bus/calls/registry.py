"""Registration: one replica's lease, renewed while it lives and ended at once when it stops (REG-2)."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from datetime import UTC, datetime

from bus.broker.connection import Connection
from bus.broker.records import Records
from bus.broker.streams import StreamNames
from bus.broker.tasks import end
from bus.calls.announcement import MAX_BYTES, Announcement, Lease
from bus.errors import BusError, error

log = logging.getLogger("bus.calls")

# Announcements are shared by replicas and outlive their leases, so that a lease never names one that is not there.
ANNOUNCEMENT_TTL_S = 86400.0
ANNOUNCE_AGAIN_S = ANNOUNCEMENT_TTL_S / 4
RETRY_S = 0.5
STOP_S = 2.0


class Registration:
    """The registration of one replica. A crash ends it within its time to live; a broken link does not, for whoever
    comes back registers again, also on a server that has lost everything.
    """

    def __init__(self, connection: Connection, announcement: Announcement, *, instance: str) -> None:
        settings = connection.settings
        self._connection = connection
        self._leases = Records(connection, StreamNames.of(settings.namespace).registry, writer="")
        self._digest, self._record = announcement.encode()
        self._lease = Lease(
            announcement.agent,
            instance,
            self._digest,
            settings.heartbeat_s,
            # The server counts whole seconds.
            float(max(1, round(settings.lease_ttl_s))),
            datetime.now(UTC).isoformat(),
        )
        self._revision: int | None = None
        self._announced_at = 0.0
        self._again = asyncio.Event()
        self._renewing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Registers, and keeps it alive from then on. Raises BrokerError, and RegistryError over 900 KiB of cards."""
        if len(self._record) > MAX_BYTES:
            raise error(
                "registry.invalid_card",
                f"the cards of {self._lease.agent} have {len(self._record)} bytes together, the limit is {MAX_BYTES}; "
                "make two agents of it",
            )
        self._connection.on_reconnect(self._reconnected)
        await self._connection.patiently(self._register)
        self._renewing = asyncio.create_task(self._keep(), name=f"lease of {self._lease.agent}")

    async def stop(self) -> None:
        """Ends the lease at once; within 2 s, after which its time to live ends it. A second call does nothing."""
        if self._renewing is None:
            return
        self._connection.remove_listener(self._reconnected)
        await end(self._renewing)
        self._renewing = None
        try:
            async with asyncio.timeout(STOP_S):
                await self._leases.take_away(self._key, ttl_s=self._lease.ttl_s)
        except (BusError, TimeoutError) as problem:
            log.warning("%s is not deregistered, its lease runs out instead: %s", self._lease.agent, problem)

    @property
    def _key(self) -> str:
        return f"lease.{self._lease.agent}.{self._lease.instance}"

    def _reconnected(self) -> None:
        # The server may have lost what it knew, and the lease may have run out meanwhile.
        self._announced_at = 0.0
        self._again.set()

    async def _register(self) -> None:
        now = time.monotonic()
        if self._announced_at == 0.0 or now - self._announced_at > ANNOUNCE_AGAIN_S:
            key = f"cards.{self._lease.agent}.{self._digest}"
            await self._leases.write(key, self._record, ttl_s=ANNOUNCEMENT_TTL_S, after=None)
            self._announced_at = now
        data, ttl_s = self._lease.encode(), self._lease.ttl_s
        revision = None
        if self._revision is not None:
            revision = await self._leases.write(self._key, data, ttl_s=ttl_s, after=self._revision)
            if revision is None:
                log.warning("the lease of %s was gone; it registers again", self._lease.agent)
        if revision is None:
            revision = await self._leases.write(self._key, data, ttl_s=ttl_s, after=None)
        self._revision = revision

    async def _keep(self) -> None:
        pause_s = self._lease.heartbeat_s
        while True:
            self._again.clear()
            try:
                # Replicas that start together must not beat together.
                async with asyncio.timeout(pause_s * random.uniform(0.9, 1.0)):
                    await self._again.wait()
            except TimeoutError:
                pass
            try:
                await self._register()
                pause_s = self._lease.heartbeat_s
            except BusError as problem:
                pause_s = min(RETRY_S, self._lease.heartbeat_s)
                log.debug("the lease of %s is not renewed: %s", self._lease.agent, problem)
