"""One connection to NATS that heals itself, and the one place that translates NATS exceptions.

nats-py reconnects by itself in the ordinary case. Three cases end it for good, and a watchdog mends them
(`ops/README.md`, Broker trouble): its reading task dies while it still calls itself connected; a reconnect
hangs on the unsent bytes of a half-dead peer; the server closes the connection with an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription as NatsSubscription
from nats.js import JetStreamContext

from bus.broker import wire
from bus.broker.embedded import Embedded
from bus.broker.parser import Arrival
from bus.broker.requests import Requests
from bus.broker.subjects import Subjects
from bus.broker.subscription import Callback
from bus.broker.subscription import Subscription as Subscription
from bus.broker.tasks import BackgroundTasks, end
from bus.broker.tls import tls_context
from bus.broker.translate import translated
from bus.config import Settings
from bus.errors import BrokerError, BusError, error

log = logging.getLogger("bus.broker")

WATCHDOG_S = 0.25
RECONNECT_HANG_S = 2.0
ATTEMPT_S = 2.5
REVIVE_AFTER_S = 1.5
PAYLOAD_MARGIN_BYTES = 1024

Result = TypeVar("Result")


class Connection:
    """A connection of one named client. Open it with `Connection.open`, end it with `close`.

    `epoch` counts its reconnections: what was delivered in an earlier one may be somebody else's by now.
    `is_connected`: messages can be exchanged now. `max_message_bytes` is the largest payload plus headers that the
    server takes.
    """

    def __init__(self, settings: Settings, name: str, embedded: Embedded | None) -> None:
        self.settings = settings
        self.name = name
        self.subjects = Subjects(settings.namespace)
        self.tasks = BackgroundTasks()
        self._embedded = embedded
        self._tls = tls_context(settings)
        self._client = Client()
        self._subscriptions: list[Subscription] = []
        self._listeners: list[Callable[[], None]] = []
        self._connected = asyncio.Event()
        self._down_since: float | None = None
        self._closing = False
        self.epoch = 0
        self.is_connected = False
        self.max_message_bytes = 0
        self._last_problem = ""
        self._watchdog: asyncio.Task[None] | None = None
        self._requests = Requests(self._client)

    @classmethod
    async def open(cls, settings: Settings, *, name: str) -> Connection:
        """Connects, or starts the embedded broker first when no server is named in the settings.

        Raises BrokerError `broker.unavailable` when no connection stands after `connect_timeout_s`.
        """
        embedded = None
        if not settings.servers:
            embedded = await Embedded.join(settings.store_dir, binary=settings.nats_server)
        connection = cls(settings, name, embedded)
        try:
            await connection._connect(time.monotonic() + settings.connect_timeout_s)
            await connection.subscribe(connection._requests.pattern, connection._requests.answer)
        except BaseException:
            await wire.close(connection._client, 1)
            if embedded is not None:
                await embedded.leave()
            raise
        connection._watchdog = connection.tasks.start(connection._watch(), name=f"watchdog {name}")
        return connection

    @property
    def url(self) -> str:
        """The server that it is connected to, without credentials."""
        connected = self._client.connected_url
        return f"nats://{connected.hostname}:{connected.port}" if connected else self._servers()[0]

    @property
    def server_id(self) -> str:
        """Which start of which server it is connected to."""
        return wire.server_id(self._client)

    @property
    def server_version(self) -> str:
        """Version of the connected server."""
        return wire.server_version(self._client)

    def jetstream(self) -> JetStreamContext:
        """nats-py's JetStream API, for management only; use it under `translated`."""
        return self._client.jetstream(timeout=5)

    def new_inbox(self) -> str:
        """A unique subject for answers."""
        return self._client.new_inbox()

    def on_reconnect(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after every reconnection. It must neither block nor raise."""
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        """Takes a listener of `on_reconnect` away again."""
        self._listeners.remove(listener)

    async def wait_connected(self, timeout_s: float) -> None:
        """Waits until connected; raises BrokerError `broker.unavailable` after `timeout_s`."""
        if self.is_connected:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._connected.wait()
        except TimeoutError:
            raise error(
                "broker.unavailable",
                f"no connection to {', '.join(self._servers())} within {timeout_s:.0f} s"
                f"{f' ({self._last_problem})' if self._last_problem else ''}; is the server running?",
            ) from None

    async def patiently(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """Awaits `attempt()` again while the broker is away, within `publish_timeout_s`; it must be safe to repeat.

        Raises the last BrokerError, and everything else at once.
        """
        deadline = time.monotonic() + self.settings.publish_timeout_s
        while True:
            try:
                await self.wait_connected(max(0.0, deadline - time.monotonic()))
                return await attempt()
            except BrokerError as problem:
                if not problem.info.retryable or time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(random.uniform(0.1, 0.4))

    async def publish(self, subject: str, data: bytes, *, reply: str = "", headers: bytes = b"") -> None:
        """Core publish: no answer, no guarantee. While disconnected it is buffered up to 2 MiB.

        `headers` is a block of `wire.header_block`. Raises BrokerError `broker.unavailable`.
        """
        await self.send(wire.publish_command(subject, reply, headers, data))

    async def send(self, commands: bytes) -> None:
        """Sends what `wire.publish_command` made, several at once if need be; as `publish`."""
        try:
            await wire.send(self._client, commands)
        except (nats.errors.Error, OSError) as problem:
            raise error("broker.unavailable", f"publish: {problem}") from problem

    def post(self, commands: bytes) -> bool:
        """As `send`, without waiting: True asks to await `relieve` before more is sent. Raises BrokerError."""
        return wire.post(self._client, commands)

    async def relieve(self) -> None:
        """Waits until less is unsent than the client's limit."""
        await self.send(b"")

    async def request(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: bytes = b"",
        timeout_s: float = 5.0,
    ) -> Arrival:
        """Core request; waits for the first answer. Fails at once while disconnected; else errors as `Requests.ask`."""
        return await self.ask(subject, data, headers=headers, timeout_s=timeout_s)

    def ask(self, subject: str, data: bytes, *, headers: bytes, timeout_s: float) -> asyncio.Future[Arrival]:
        """As `request`, but returns the future of the answer: one coroutine less for what is sent most."""
        if not self.is_connected:
            raise error("broker.unavailable", f"request on {subject}: not connected", reason="disconnected")
        return self._requests.ask(subject, data, headers, timeout_s=timeout_s)

    async def subscribe(self, subject: str, callback: Callback, *, queue: str = "") -> Subscription:
        """Core subscription; `callback` is called once a message, in order; it must neither block nor raise.

        Each message goes to one of the subscriptions that share a `queue`.
        """
        subscription = Subscription(subject, callback, queue, end=self._unsubscribe)
        self._subscriptions.append(subscription)
        await self._subscribe_live(subscription)
        return subscription

    async def _unsubscribe(self, subscription: Subscription, live: NatsSubscription | None, timeout_s: float) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
        if live is not None:
            with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
                await wire.unsubscribe(self._client, live, timeout_s)

    async def flush(self, timeout_s: float = 2.0) -> None:
        """Waits until the server has read everything sent before."""
        with translated("flush"):
            await wire.flush(self._client, timeout_s)

    async def close(self) -> None:
        """Sends what is buffered and closes; bounded; a second call does nothing."""
        if self._closing:
            return
        self._closing = True
        self._down()
        await end(self._watchdog)
        with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
            if self._client.is_connected:
                await wire.flush(self._client, 2)
        self._requests.fail_all("the connection was closed")
        await wire.close(self._client, 3)
        if self._embedded is not None:
            await self._embedded.leave()

    # -- connecting and healing --

    def _servers(self) -> list[str]:
        if self._embedded is not None:
            return [self._embedded.url]
        return [part.strip() for part in self.settings.servers.split(",") if part.strip()]

    async def _connect(self, deadline: float) -> None:
        options: dict[str, Any] = {"tls": self._tls} if self._tls is not None else {}
        if self.settings.creds:
            options["user_credentials"] = self.settings.creds
        while True:
            client = Client()
            wire.read_directly(client)
            try:
                await asyncio.wait_for(
                    client.connect(
                        servers=self._servers(),
                        name=self.name,
                        error_cb=self._on_error,
                        disconnected_cb=self._on_disconnected,
                        reconnected_cb=self._on_reconnected,
                        reconnect_to_server_handler=wire.next_server,
                        connect_timeout=2,
                        reconnect_time_wait=0.2,  # type: ignore[arg-type]
                        max_reconnect_attempts=-1,
                        ping_interval=5,
                        drain_timeout=5,
                        skip_subject_validation=True,
                        **options,
                    ),
                    max(0.5, min(ATTEMPT_S, deadline - time.monotonic())),
                )
                break
            except (nats.errors.Error, OSError, TimeoutError) as problem:
                wire.abort(client)
                self._last_problem = self._last_problem or str(problem) or type(problem).__name__
                if time.monotonic() >= deadline:
                    raise error(
                        "broker.unavailable",
                        f"cannot connect to {', '.join(self._servers())}: {self._last_problem}; is the server running?",
                    ) from problem
                await asyncio.sleep(0.1)
        if self._is_another_broker(client):
            await wire.close(client, 1)
            raise error("broker.unavailable", f"another broker answers at {self._servers()[0]}")
        self._client = self._requests.client = client
        self._down_since = None
        self._last_problem = ""
        self._up()

    def _is_another_broker(self, client: Client) -> bool:
        """Whether the embedded broker of another folder took over the port while ours was away."""
        return self._embedded is not None and wire.server_name(client) != self._embedded.server_name

    async def _subscribe_live(self, subscription: Subscription) -> None:
        with translated(f"subscribe to {subscription.subject}"):
            subscription.live = await self._client.subscribe(subscription.subject, subscription.queue)
            wire.take_directly(subscription.live, subscription.callback)

    async def _on_error(self, problem: Exception) -> None:
        # Raising or waiting here would end nats-py's read loop for good.
        self._last_problem = str(problem) or type(problem).__name__
        if isinstance(problem, nats.errors.SlowConsumerError):
            log.warning("a message was dropped before it was read: %s", problem)
        else:
            log.debug("%s: %s", self.name, self._last_problem)

    async def _on_disconnected(self) -> None:
        self._mark_down()

    async def _on_reconnected(self) -> None:
        if not self._is_another_broker(self._client):
            self._mark_up()

    def _mark_down(self) -> None:
        if self._down_since is None and not self._closing:
            self._down_since = time.monotonic()
            log.warning("%s: the link to the broker is down; reconnecting", self.name)
        self._down()
        self._requests.fail_all("the link to the broker broke")

    def _mark_up(self) -> None:
        if self._down_since is not None:
            log.warning("%s: connected again after %.1f s", self.name, time.monotonic() - self._down_since)
        self._down_since = None
        self.epoch += 1
        self._up()
        for listener in list(self._listeners):
            listener()

    def _up(self) -> None:
        # Another server may have another limit.
        self.max_message_bytes = self._client.max_payload - PAYLOAD_MARGIN_BYTES
        self.is_connected = True
        self._connected.set()

    def _down(self) -> None:
        self.is_connected = False
        self._connected.clear()

    async def _watch(self) -> None:
        reconnecting_since: float | None = None
        revived_at = 0.0
        while True:
            await asyncio.sleep(WATCHDOG_S)
            client, now = self._client, time.monotonic()
            if self._embedded is not None and client.is_closed and now - revived_at > 5:
                revived_at = now
                await self._revive(self._embedded)
            if client.is_closed or not (client.is_connected or wire.reconnects(client)):
                self._mark_down()
                await self._rebuild()
                reconnecting_since = None
                continue
            if client.is_connected and self._is_another_broker(client):
                self._last_problem = "another broker answers on the port of ours"
                self._mark_down()
                await wire.close(client, 1)
                continue
            if client.is_connected:
                reconnecting_since = None
                if wire.has_stopped_reading(client):
                    log.warning("%s: the reading task ended; forcing a reconnect", self.name)
                    self._mark_down()
                    await client.force_reconnect()
                continue
            self._mark_down()
            reconnecting_since = reconnecting_since or now
            if now - reconnecting_since > RECONNECT_HANG_S:
                wire.abort(client)
                reconnecting_since = now
            down_for = now - (self._down_since or now)
            if self._embedded is not None and down_for > REVIVE_AFTER_S and now - revived_at > 5:
                revived_at = now
                await self._revive(self._embedded)

    async def _revive(self, embedded: Embedded) -> None:
        try:
            await embedded.revive()
        except BusError as problem:
            log.warning("%s: %s", self.name, problem)

    async def _rebuild(self) -> None:
        log.warning("%s: the connection ended (%s); building a new one", self.name, self._last_problem)
        await wire.close(self._client, 1)
        try:
            await self._connect(time.monotonic() + ATTEMPT_S)
            for subscription in list(self._subscriptions):
                await self._subscribe_live(subscription)
        except BusError as problem:
            self._down()
            log.debug("%s: %s", self.name, problem)
            await asyncio.sleep(random.uniform(0.2, 1.0))
            return
        self._mark_up()
