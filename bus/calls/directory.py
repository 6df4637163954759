"""The directory: the registry as one process sees it, an index kept in step by a watch (REG-2, REG-3)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from bus.broker.connection import Connection
from bus.broker.pull import Delivery
from bus.broker.records import DELETED, Records
from bus.broker.streams import StreamNames, last_seq_of
from bus.broker.tasks import end
from bus.calls.announcement import Announcement, Lease
from bus.calls.card import Card
from bus.calls.index import Index, Offer, Registered
from bus.calls.sight import Sight
from bus.errors import BusError, error
from bus.trust.rule_book import RuleBook

log = logging.getLogger("bus.calls")

EXPIRE_S = 0.5
SETTLE_S = 1.0
RESTART_S = 0.5
MAX_TOLD = 1000


class Directory:
    """Who is there and what they offer. It starts with the first `ready`, and lives as long as its connection.

    Records that cannot be read are skipped, each with one line in the log.
    """

    def __init__(self, connection: Connection) -> None:
        self.index = Index()
        self._connection = connection
        self._leases = Records(connection, StreamNames.of(connection.settings.namespace).registry, writer="")
        self._reading: asyncio.Task[None] | None = None
        self._caught_up = asyncio.Event()
        self._moved = asyncio.Event()
        self._seq = 0
        self._told: set[str] = set()

    @property
    def is_ready(self) -> bool:
        """Whether `ready` would return at once."""
        return self._caught_up.is_set()

    async def ready(self, timeout_s: float) -> None:
        """Returns once the index holds what the registry held at the first call.

        Raises BrokerError `broker.unavailable` after `timeout_s`.
        """
        if self._caught_up.is_set():
            return
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name="registry watch")
        try:
            async with asyncio.timeout(timeout_s):
                await self._caught_up.wait()
        except TimeoutError:
            await self._connection.wait_connected(0)
            raise error(
                "broker.unavailable", f"the registry was not read within {timeout_s:.1f} s; is the broker overloaded?"
            ) from None

    async def settle(self) -> None:
        """Catches up with what the registry holds now, within a second: what is not in the index then is not there."""
        try:
            newest = await last_seq_of(self._connection, self._leases.stream, self._leases.subject(">"))
            async with asyncio.timeout(SETTLE_S):
                while self._seq < newest:
                    self._moved.clear()
                    await self._moved.wait()
        except (TimeoutError, BusError) as problem:
            log.debug("the index may be behind the registry: %s", problem)

    async def close(self) -> None:
        """Ends the watch; a second call does nothing."""
        await end(self._reading)

    async def _read(self) -> None:
        expiring = asyncio.create_task(self._expire(), name="registry expiry")
        try:
            while True:
                try:
                    await self._watch()
                except BusError as problem:
                    log.debug("the registry cannot be read: %s", problem)
                await asyncio.sleep(RESTART_S)
        finally:
            await end(expiring)

    async def _watch(self) -> None:
        # From the first entry: a bucket holds no more than its newest ones.
        async with self._leases.reader(">") as reader:
            if reader.is_caught_up:
                self._caught_up.set()
            async for delivery in reader:
                self._take(delivery)
                self._seq = delivery.stream_seq
                if delivery.pending == 0:
                    self._caught_up.set()
                self._moved.set()

    def _take(self, delivery: Delivery) -> None:
        key = self._leases.key(delivery)
        tokens = key.split(".")
        if tokens[0] == "accepts":
            return  # What replicas accept of messages is for who sends messages.
        try:
            if len(tokens) != 3 or tokens[0] not in ("lease", "cards"):
                raise ValueError("its key is neither lease.<agent>.<instance> nor cards.<agent>.<digest>")
            kind, agent, last = tokens
            if DELETED in delivery.headers:
                (self.index.end if kind == "lease" else self.index.forget)(agent, last)
            elif kind == "cards":
                announcement = Announcement.decode(agent, last, delivery.data)
                for reason in announcement.skipped:
                    self._tell(f"{key} {reason}", "the registry entry %s: %s", key, reason)
                self.index.announce(last, announcement)
            else:
                self._renew(Lease.decode(agent, last, delivery.data), delivery)
        except ValueError as problem:
            self._tell(key, "the registry entry %s is skipped: %s", key[:200], problem)

    def _renew(self, lease: Lease, delivery: Delivery) -> None:
        # Of an old entry only the rest is left. Clocks that disagree must not hide a live agent, and a live one is
        # heard of within two heartbeats.
        left_s = min(lease.ttl_s, max(lease.ttl_s - delivery.age_s(), 2 * lease.heartbeat_s))
        self.index.renew(lease, time.monotonic() + left_s)

    async def _expire(self) -> None:
        epoch = self._connection.epoch
        while True:
            await asyncio.sleep(EXPIRE_S)
            late = self.index.late(time.monotonic())
            if not late or not self._connection.is_connected:
                continue
            # Before somebody counts as gone the broker must answer: while it is away, and for a moment after that,
            # nobody can be heard, so that time does not count.
            asked_at = time.monotonic()
            is_heard = await self._is_answering()
            slow = time.monotonic() - asked_at > min(lease.heartbeat_s for lease in late)
            if not is_heard or slow or epoch != self._connection.epoch:
                epoch = self._connection.epoch
                self.index.spare(time.monotonic())
            for lease in self.index.expire(time.monotonic()):
                log.info("a replica of %s is gone: its lease was not renewed for %g s", lease.agent, lease.ttl_s)

    async def _is_answering(self) -> bool:
        try:
            await last_seq_of(self._connection, self._leases.stream, self._leases.subject(">"))
        except BusError:
            return False
        return True

    def _tell(self, key: str, line: str, *values: object) -> None:
        if key not in self._told and len(self._told) < MAX_TOLD:
            self._told.add(key)
            log.warning(line, *values)


class Capabilities:
    """What this client can call, as `bus.capabilities`; with rules, what it may not is not there.

    Every question waits until the registry has been read.
    """

    __slots__ = ("_caller_name", "_directory", "_rules")

    def __init__(self, directory: Directory, caller_name: str, rules: RuleBook | None) -> None:
        self._directory = directory
        self._caller_name = caller_name
        self._rules = rules

    async def find(
        self,
        prefix: str = "",
        *,
        agent: str | None = None,
        where: Callable[[Card], bool] | None = None,
        timeout_s: float = 5.0,
    ) -> list[Offer]:
        """The offers whose name begins with `prefix`, of one agent, for whose card `where` holds; sorted by name.

        Raises BrokerError when the registry cannot be read within `timeout_s`.
        """
        await self._fresh(timeout_s)
        return list(self._seen().find(prefix=prefix, agent=agent, where=where))

    async def agents(self, *, timeout_s: float = 5.0) -> list[Registered]:
        """Every agent with a live replica, its leases and announcements. Raises BrokerError as `find`."""
        await self._fresh(timeout_s)
        return self._seen().registered()

    def _seen(self) -> Index | Sight:
        index = self._directory.index
        return index if self._rules is None else Sight(index, self._rules.rules, (self._caller_name,))

    async def _fresh(self, timeout_s: float) -> None:
        await self._directory.ready(timeout_s)
        await self._directory.settle()
