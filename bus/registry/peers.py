"""Peers: which replicas live and what they accept, in memory, fed by the stream behind the leases (REG-9)."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

import orjson

from bus.broker.connection import Connection
from bus.broker.pull import Delivery
from bus.broker.records import DELETED
from bus.broker.streams import last_seq_of
from bus.broker.tasks import end
from bus.contracts.accepts import Accepts
from bus.errors import BusError, error
from bus.registry.lease import EVERY, owner, registry_of

log = logging.getLogger("bus.registry")

FIRST_LOOK_S = 0.5
CATCH_UP_S = 2.0
RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class Peer:
    """One replica that lives. `heard_at` is when it last said so, by this process's monotonic clock."""

    agent: str
    replica: str
    accepts: Accepts
    ttl_s: float
    heard_at: float


class Peers:
    """The replicas of all agents. It begins to read when it is first asked, and costs nothing before."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._leases = registry_of(connection)
        self._known: dict[str, dict[str, Peer]] = {}
        self._seen_seq = 0
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._advanced = asyncio.Condition()
        self._first_look_until = 0.0

    async def of(self, agent: str) -> list[Peer]:
        """The live replicas of an agent, as far as this process has heard; none when the bucket is away.

        Only the first calls may wait, half a second in all, for the first look.
        """
        self._start()
        if not self._ready.is_set() and (left_s := self._first_look_until - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(left_s):
                    await self._ready.wait()
            except TimeoutError:
                log.warning("nothing is known of what %s and others accept; messages are sent as they are", agent)
        now = time.monotonic()
        return [peer for peer in self._known.get(agent, {}).values() if now - peer.heard_at < peer.ttl_s]

    async def surely_of(self, agent: str) -> list[Peer]:
        """The same, after catching up with the bucket. Raises `broker.unavailable` when it cannot, after 2 s."""
        self._start()
        try:
            async with asyncio.timeout(CATCH_UP_S):
                target = await last_seq_of(self._connection, self._leases.stream, self._leases.subject(EVERY))
                async with self._advanced:
                    while self._seen_seq < target:
                        await self._advanced.wait()
        except TimeoutError:
            raise error("broker.unavailable", f"what lives of {agent} is not known after {CATCH_UP_S:.0f} s") from None
        return await self.of(agent)

    async def stop(self) -> None:
        """Stops reading; bounded; a second call does nothing."""
        if self._task is not None:
            self._connection.remove_listener(self._reconnected)
            await end(self._task)
            self._task = None

    def _start(self) -> None:
        if self._task is None:
            self._first_look_until = time.monotonic() + FIRST_LOOK_S
            self._connection.on_reconnect(self._reconnected)
            self._task = asyncio.create_task(self._follow(), name="follow the leases")

    def _reconnected(self) -> None:
        # Nobody could be heard while the link was down, which says nothing about who lives.
        now = time.monotonic()
        for replicas in self._known.values():
            for key, peer in replicas.items():
                replicas[key] = Peer(peer.agent, peer.replica, peer.accepts, peer.ttl_s, now)

    async def _follow(self) -> None:
        while True:
            try:
                async with self._leases.reader(EVERY) as reader:
                    if reader.is_caught_up:
                        self._ready.set()
                    async for delivery in reader:
                        self._learn(delivery)
                        if delivery.pending == 0:
                            self._ready.set()
                        async with self._advanced:
                            self._advanced.notify_all()
            except BusError as problem:
                log.debug("the leases cannot be read, trying again: %s", problem.info.message)
            await asyncio.sleep(RETRY_S)

    def _learn(self, delivery: Delivery) -> None:
        self._seen_seq = max(self._seen_seq, delivery.stream_seq)
        agent, replica = owner(self._leases.key(delivery))
        replicas = self._known.setdefault(agent, {})
        if DELETED in delivery.headers:
            replicas.pop(replica, None)
            return
        now = time.monotonic()
        for key in [key for key, peer in replicas.items() if now - peer.heard_at >= peer.ttl_s]:
            del replicas[key]
        try:
            record = orjson.loads(delivery.data)
            ttl_s = float(record["ttl_s"])
            accepts = Accepts.from_wire(record.get("accepts"))
        except (ValueError, TypeError, KeyError, AttributeError):
            log.debug("the lease %s cannot be read and is ignored", delivery.subject)
            return
        # One that is read long after it was set may be the last word of a replica that has died. Not by more than
        # half, because the clocks may disagree.
        age_s = min(delivery.age_s(), ttl_s / 2)
        replicas[replica] = Peer(agent, replica, accepts, ttl_s, now - age_s)
