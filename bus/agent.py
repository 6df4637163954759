"""Agents: handlers by message type, and how they run and stop."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from bus.broker.connection import Connection
from bus.broker.streams import provision
from bus.config import Settings
from bus.delivery.commits import Commits
from bus.delivery.consumer import Consumer
from bus.delivery.dedupe import Dedupe
from bus.delivery.handler import Handler, HandlerMiddleware
from bus.delivery.limits import Limits
from bus.delivery.middleware import PublishMiddleware
from bus.delivery.pipeline import Pipeline
from bus.delivery.publisher import Publisher
from bus.delivery.queue_watch import QueueWatch
from bus.delivery.repair import Repair
from bus.delivery.settlement import RetryPolicy
from bus.delivery.span_status import span_status_told
from bus.delivery.tracing import DeliveryTracing
from bus.envelope.grammar import is_agent_name, is_type_name
from bus.telemetry.metrics import ServiceMetrics
from bus.telemetry.spans import Telemetry

log = logging.getLogger("bus.agent")

Function = TypeVar("Function", bound=Callable[..., Any])


class Replica:
    """One running replica of an agent, as `Agent.running` yields it."""

    __slots__ = ("_consumer", "metrics")

    def __init__(self, consumer: Consumer, metrics: ServiceMetrics) -> None:
        self._consumer = consumer
        self.metrics = metrics

    @property
    def in_flight(self) -> int:
        """How many messages it is handling now."""
        return self._consumer.in_flight

    def hurry(self) -> None:
        """Ends the grace of its drain, now or when the drain begins: what still runs is handed back at once.

        A plain `def` handler cannot be interrupted; its message is handed back while its thread goes on.
        """
        self._consumer.hurry()


class Agent:
    """A named agent. Every process that runs it is one replica; replicas share its messages.

    `concurrency` is how many messages one replica handles at once, `retry` the policy for failing ones (default: 5
    attempts, or the setting `max_attempts`). `middleware` wraps every handler, `publish_middleware` every send;
    `bus/delivery/middleware.py` shows how.
    """

    def __init__(
        self,
        name: str,
        *,
        concurrency: int = 16,
        retry: RetryPolicy | None = None,
        middleware: Sequence[HandlerMiddleware] = (),
        publish_middleware: Sequence[PublishMiddleware] = (),
    ) -> None:
        if not is_agent_name(name):
            raise ValueError(f"{name!r} is not an agent name: 1 to 64 letters, digits, _ and -")
        if concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}, it must be at least 1")
        self.name = name
        self.concurrency = concurrency
        self.retry = retry
        self.middleware = tuple(middleware)
        self.publish_middleware = tuple(publish_middleware)
        self._handlers: dict[str, Handler] = {}
        self._broadcasts: set[str] = set()

    @property
    def handles(self) -> list[str]:
        """The message types that it has handlers for, sorted."""
        return sorted(self._handlers)

    def on(
        self,
        type: str,
        *,
        phase: str | None = None,
        broadcast: bool = False,
        retry: RetryPolicy | None = None,
        concurrency: int | None = None,
        rate_per_s: float | None = None,
        timeout_s: float | None = None,
    ) -> Callable[[Function], Function]:
        """Registers the decorated function for one message type.

        `async def f(payload: Model, message: Message) -> None`; the annotation of the payload decides how it is
        validated, `message` may be left out, and a plain `def` runs in a worker thread. `phase` is the workflow
        phase of messages that come without one, `retry` a policy of its own. `broadcast`: it also gets what others
        send to `*` with this type, once for the agent, whichever replica takes it. In each replica at most
        `concurrency` of them run at once and `rate_per_s` begin a second; one that takes longer than `timeout_s` fails
        as `tool.timeout`. Raises ValueError for a second handler of the same type or a
        type that is not snake_case, TypeError for a signature that does not fit.
        """

        def register(function: Function) -> Function:
            if not is_type_name(type):
                raise ValueError(f"{type!r} is not a message type: snake_case, 1 to 64 characters")
            if type in self._handlers:
                raise ValueError(f"{self.name} already has a handler for {type!r}")
            limits = Limits(concurrency, rate_per_s, timeout_s)
            self._handlers[type] = Handler.of(type, function, phase=phase, limits=limits, retry=retry)
            if broadcast:
                self._broadcasts.add(type)
            return function

        return register

    @contextlib.asynccontextmanager
    async def running(self, settings: Settings | None = None, **overrides: Any) -> AsyncIterator[Replica]:
        """Runs one replica for as long as the body runs, then drains it.

        Settings come from the environment and `overrides`. On exit it stops pulling, finishes what is in hand within
        `grace_s`, hands the rest back, and closes the connection; the replica that it yields can hurry that.
        Raises BrokerError when it cannot start.
        """
        settings = Settings.chosen(settings, overrides)
        telemetry = Telemetry(self.name, namespace=settings.namespace)
        try:
            connection = await Connection.open(settings, name=self.name)
        except BaseException:
            await telemetry.close()
            raise
        dedupe = Dedupe(connection, self.name)
        commits = Commits(connection, self.name, on_stored=dedupe.stored)
        phases = {type: handler.phase for type, handler in self._handlers.items()}
        tracing = DeliveryTracing(telemetry, agent=self.name, phases=phases)
        pipeline = Pipeline(
            connection,
            tracing,
            telemetry.metrics.deliveries(phases),
            agent=self.name,
            handlers=self._handlers,
            retry=self.retry,
            middleware=self.middleware,
            publisher=Publisher(connection, telemetry, middleware=self.publish_middleware),
            dedupe=dedupe,
            commits=commits,
        )
        repair = Repair(
            connection, self.name, dedupe=dedupe, publisher=Publisher(connection, telemetry), tracing=tracing
        )
        consumer = Consumer(
            connection, pipeline, agent=self.name, concurrency=self.concurrency, broadcasts=self._broadcasts
        )
        queue = QueueWatch(
            connection,
            self.name,
            lanes=lambda: consumer.lanes,
            in_flight=lambda: consumer.in_flight,
            concurrency=self.concurrency,
        )
        telemetry.metrics.observe(queue.read)
        try:
            for difference in await provision(connection):
                log.warning("%s", difference)
            await dedupe.start()
            await repair.start()
            await consumer.start()
            queue.start()
            log.info("%s runs on %s and handles %s", self.name, connection.url, ", ".join(self.handles))
            try:
                async with span_status_told(connection, telemetry):
                    yield Replica(consumer, telemetry.metrics)
            finally:
                handed_back = await consumer.drain(settings.grace_s)
                if handed_back:
                    log.warning("%s handed back %d messages that were still running", self.name, handed_back)
        finally:
            await queue.stop()
            await repair.stop()
            await commits.stop()
            await dedupe.stop()
            await telemetry.close()
            await connection.close()
