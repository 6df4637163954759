"""Agents: handlers by message type, and how they run and stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from bus.broker.connection import Connection
from bus.broker.provisioning import provision
from bus.broker.subjects import TASK
from bus.calls.capability import Capability
from bus.calls.card import CALL_MODE, TASK_MODE
from bus.calls.controlled import not_cancelled, publishing
from bus.calls.execution import Check
from bus.calls.guard import Guard
from bus.calls.service import Service
from bus.config import Settings
from bus.contracts.upcast import Cast, Contracts, compiled
from bus.delivery.commits import Commits
from bus.delivery.consumer import Consumer
from bus.delivery.controlled import controlled
from bus.delivery.dedupe import Dedupe
from bus.delivery.handler import TASK_REQUEST, Handler, HandlerMiddleware, accepted, task_handler
from bus.delivery.handover import HandOver
from bus.delivery.holding import Holding
from bus.delivery.limits import Limits
from bus.delivery.middleware import PublishMiddleware
from bus.delivery.negotiation import Negotiation
from bus.delivery.pipeline import Pipeline
from bus.delivery.publisher import Publisher
from bus.delivery.queue_watch import QueueWatch
from bus.delivery.repair import Repair
from bus.delivery.settlement import RetryPolicy
from bus.delivery.span_status import span_status_told
from bus.delivery.supervision import Supervision
from bus.delivery.tracing import DeliveryTracing
from bus.envelope.grammar import is_agent_name, is_type_name
from bus.registry.peers import Peers
from bus.registry.presence import Presence
from bus.telemetry.metrics import ServiceMetrics
from bus.telemetry.spans import Telemetry
from bus.trust.confirmations import Confirmations
from bus.trust.rule_book import RuleBook
from bus.workflow.calling import Calling
from bus.workflow.control import Control, ControlWatch
from bus.workflow.handle import Workflows

log = logging.getLogger("bus.agent")

SHORT_S, LONG_S = 10.0, 3600.0

Function = TypeVar("Function", bound=Callable[..., Any])


class Replica:
    """One running replica of an agent, as `Agent.running` yields it."""

    __slots__ = ("_consumers", "_service", "metrics")

    def __init__(self, consumers: Sequence[Consumer], service: Service, metrics: ServiceMetrics) -> None:
        self._consumers = consumers
        self._service = service
        self.metrics = metrics

    @property
    def in_flight(self) -> int:
        """How many messages, tasks and calls it has in hand now."""
        return sum(consumer.in_flight for consumer in self._consumers) + self._service.in_flight

    def hurry(self) -> None:
        """Ends the grace of its drain, now or when the drain begins: what still runs is handed back at once.

        A plain `def` handler cannot be interrupted; its message is handed back while its thread goes on.
        """
        for consumer in self._consumers:
            consumer.hurry()
        self._service.hurry()


class Agent:
    """A named agent. Every process that runs it is one replica; replicas share its messages.

    `concurrency` is how many messages one replica handles at once, `retry` the policy for failing ones (default: 5
    attempts, or the setting `max_attempts`). `middleware` wraps every handler, `publish_middleware` every send;
    `bus/delivery/middleware.py` shows how. `call_concurrency` is how many calls one replica runs at once beside them,
    `task_concurrency` how many tasks beside both; `call_checks` are awaited before the arguments of a call are looked
    at, and raise the BusError that refuses it.
    `contracts` are upcasters and downcasters that it shares with others. A chain of messages may pass it at most
    `max_visits` times.
    """

    def __init__(
        self,
        name: str,
        *,
        concurrency: int = 16,
        retry: RetryPolicy | None = None,
        middleware: Sequence[HandlerMiddleware] = (),
        publish_middleware: Sequence[PublishMiddleware] = (),
        call_concurrency: int = 64,
        task_concurrency: int = 16,
        call_checks: Sequence[Check] = (),
        contracts: Sequence[Contracts] = (),
        max_visits: int | None = None,
    ) -> None:
        if not is_agent_name(name):
            raise ValueError(f"{name!r} is not an agent name: 1 to 64 letters, digits, _ and -")
        for option, value in (
            ("concurrency", concurrency), ("call_concurrency", call_concurrency),
            ("task_concurrency", task_concurrency),
        ):  # fmt: skip
            if value < 1:
                raise ValueError(f"{option} is {value}, it must be at least 1")
        self.name = name
        self.concurrency = concurrency
        self.retry = retry
        self.middleware = tuple(middleware)
        self.publish_middleware = tuple(publish_middleware)
        self.contracts = tuple(contracts)
        self.max_visits = max_visits
        self._own_contracts = Contracts()
        self._handlers: dict[str, Handler] = {}
        self._broadcasts: set[str] = set()
        self.call_concurrency = call_concurrency
        self.task_concurrency = task_concurrency
        self.call_checks = tuple(call_checks)
        self._capabilities: dict[str, Capability] = {}

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
        version: str | None = None,
    ) -> Callable[[Function], Function]:
        """Registers the decorated function for one message type.

        `async def f(payload: Model, message: Message) -> None`; the annotation of the payload decides how it is
        validated, `message` may be left out, and a plain `def` runs in a worker thread. `phase` is the workflow
        phase of messages that come without one, `retry` a policy of its own. `broadcast`: it also gets what others
        send to `*` with this type, once for the agent, whichever replica takes it. In each replica at most
        `concurrency` of them run at once and `rate_per_s` begin a second; one that takes longer than `timeout_s` fails
        as `tool.timeout`. `version` (`2.1`) is that of the payload's contract, unless the model says it itself with
        `__contract__ = "draft_request@2.1"`: it then reads every minor of that major, older majors through `upcast`,
        and no other. Raises ValueError for a second handler of the same type, a type that is not snake_case, or
        a version that is none or not the model's, TypeError for a signature that does not fit.
        """

        def register(function: Function) -> Function:
            if not is_type_name(type):
                raise ValueError(f"{type!r} is not a message type: snake_case, 1 to 64 characters")
            if type in self._handlers:
                raise ValueError(f"{self.name} already has a handler for {type!r}")
            limits = Limits(concurrency, rate_per_s, timeout_s)
            self._handlers[type] = Handler.of(type, function, phase=phase, limits=limits, retry=retry, version=version)
            if broadcast:
                self._broadcasts.add(type)
            return function

        return register

    @property
    def capabilities(self) -> list[str]:
        """The names of its capabilities, sorted."""
        return sorted(self._capabilities)

    def capability(
        self,
        name: str,
        *,
        description: str | None = None,
        example: Any = None,
        timeout_s: float | None = None,
        long: bool = False,
        idempotent: bool = False,
        sensitive: bool = False,
        version: str = "1.0.0",
        accepts: Sequence[str] = (),
        lenient: bool = False,
        input_schema: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
    ) -> Callable[[Function], Function]:
        """Registers the decorated function as a capability that others may call (REG-1).

        `timeout_s` bounds one run, by default 10 s. `long`: it takes more time than a caller waits; one run has an hour
        by default, and a call is answered pending, with the id of a task (REG-8).

        It takes one model (pydantic, dataclass, TypedDict) or plain named parameters, and a parameter annotated
        `Call` if it wants; a plain `def` runs in a worker thread. The annotations give the schemas, unless they are
        given; the docstring gives the description. `example` are arguments for a test call. `idempotent`: running it
        twice does no harm, so callers may try again. `sensitive` is for the rules. `accepts` are older versions whose
        calls it still takes. `lenient`: text that is unmistakably a number, a boolean or JSON is read as it where the
        schema asks for one. Raises RegistryError `registry.invalid_card` with every reason at once, ValueError for a
        second one of the same name, TypeError for a signature that does not fit.
        """

        def register(function: Function) -> Function:
            if name in self._capabilities:
                raise ValueError(f"{self.name} already has a capability {name!r}")
            fields = {
                "description": description,
                "example": example,
                "timeout_s": (LONG_S if long else SHORT_S) if timeout_s is None else timeout_s,
                "mode": TASK_MODE if long else CALL_MODE,
                "idempotent": idempotent,
                "sensitive": sensitive,
                "version": version,
                "accepts": tuple(accepts),
                "input_schema": input_schema,
                "output_schema": output_schema,
            }
            self._capabilities[name] = Capability(name, function, lenient=lenient, fields=fields)
            return function

        return register

    def withdraw(self, name: str) -> None:
        """Takes a capability back. One that is not there is left alone.

        While the agent runs, calls of it hear `tool.unknown_capability`; the registry names it until the next start.
        """
        self._capabilities.pop(name, None)

    def upcast(self, type: str, major: int) -> Callable[[Cast], Cast]:
        """Registers the decorated function: payloads of `major` become those of `major + 1`; see `Contracts.upcast`."""
        return self._own_contracts.upcast(type, major)

    def downcast(self, type: str, major: int) -> Callable[[Cast], Cast]:
        """Registers the decorated function for what this agent sends to older receivers; see `Contracts.downcast`."""
        return self._own_contracts.downcast(type, major)

    def compiled(self) -> dict[str, Handler]:
        """The handlers by type, each with the chain of upcasters to its version.

        Raises ValueError with everything that is wrong with the upcasters at once.
        """
        versions = {type: handler.version for type, handler in self._handlers.items()}
        chains = compiled(versions, self._own_contracts, self.contracts)
        return {type: replace(handler, chain=chains.get(type)) for type, handler in self._handlers.items()}

    @contextlib.asynccontextmanager
    async def running(
        self, settings: Settings | None = None, *, stand_in: Calling | None = None, **overrides: Any
    ) -> AsyncIterator[Replica]:
        """Runs one replica for as long as the body runs, then drains it.

        Settings come from the environment and `overrides`. On exit it deregisters and stops pulling, finishes what is
        in hand within `grace_s`, hands the rest back, and closes the connection; the replica that it yields can
        hurry that. Raises BrokerError when it cannot start. When something that runs in its background fails, which is
        a bug, the body is cancelled and BusError `internal.error` is raised: the process should be started again.
        ValueError for upcasters that lead nowhere. `stand_in` answers what the handlers call, instead of other agents.
        """
        settings = Settings.chosen(settings, overrides)
        handlers, contracts = self.compiled(), (self._own_contracts, *self.contracts)
        if self._capabilities and TASK_REQUEST in handlers:
            raise ValueError(f"{self.name} has capabilities, whose tasks come as {TASK_REQUEST!r}; it needs no handler")
        RuleBook.opened(settings)  # What is wrong with it is told before anything has started.
        telemetry = Telemetry(self.name, namespace=settings.namespace)
        try:
            connection = await Connection.open(settings, name=self.name)
        except BaseException:
            await telemetry.close()
            raise
        guard = Guard(connection, self.name, instance=telemetry.instance_id)
        peers = Peers(connection)
        negotiation = Negotiation(peers, contracts)
        policy = self.retry or RetryPolicy(max_attempts=settings.max_attempts)
        publisher = Publisher(connection, telemetry, middleware=self.publish_middleware, negotiation=negotiation)

        def decided(workflow_id: str, control: Control) -> None:
            for one in consumers:
                one.decided(workflow_id, control)
            service.decided(workflow_id, control)
            holding.decided()

        controls, confirmations = ControlWatch(connection, decided=decided), Confirmations(connection)
        service = Service(
            connection,
            telemetry,
            agent=self.name,
            capabilities=self._capabilities,
            checks=(not_cancelled(controls), *self.call_checks),
            concurrency=self.call_concurrency,
            publish=publishing(controls, publisher.publish),
            handles=[str(handler.version or type) for type, handler in sorted(handlers.items())],
            attempts=lambda code: policy.for_code(code).max_attempts,
            guard=guard,
        )
        if self._capabilities:
            handlers[TASK_REQUEST] = task_handler(service.tasks.handle, policy)
        models = {type: handler.model for type, handler in handlers.items()}
        presence = Presence(connection, self.name, accepted(handlers), models)
        dedupe = Dedupe(connection, self.name)
        commits = Commits(connection, self.name, on_stored=dedupe.stored)
        phases = {type: handler.phase for type, handler in handlers.items()}
        tracing = DeliveryTracing(telemetry, agent=self.name, phases=phases)
        deliveries = telemetry.metrics.deliveries(phases)
        holding = Holding(
            connection,
            self.name,
            controls=controls,
            confirmations=confirmations,
            hand_over=HandOver(connection, self.name, presence.replica, peers),
        )
        control = controlled(controls, confirmations, set_aside={TASK_REQUEST: service.tasks.set_aside})
        pipeline = Pipeline(
            connection,
            tracing,
            deliveries,
            agent=self.name,
            handlers=handlers,
            retry=self.retry,
            middleware=(control, *self.middleware),
            publisher=publisher,
            dedupe=dedupe,
            commits=commits,
            calls=stand_in or service.caller,
            accounts=service.caller.accounts,
            max_visits=self.max_visits,
            hand_over=holding,
            workflows=Workflows(connection, self.name, controls),
        )
        repair = Repair(
            connection,
            self.name,
            dedupe=dedupe,
            publisher=Publisher(connection, telemetry),
            tracing=tracing,
            deliveries=deliveries,
        )
        shared: dict[str, Any] = {"agent": self.name, "holding": holding}
        consumer = Consumer(connection, pipeline, concurrency=self.concurrency, broadcasts=self._broadcasts, **shared)
        consumers = [consumer]
        if self._capabilities:
            consumers.append(Consumer(connection, pipeline, concurrency=self.task_concurrency, only=TASK, **shared))
        queue = QueueWatch(
            connection,
            self.name,
            lanes=lambda: [lane for one in consumers for lane in one.lanes],
            in_flight=lambda: consumer.in_flight,
            concurrency=self.concurrency,
        )
        telemetry.metrics.observe(queue.read)
        telemetry.metrics.observe(presence.read)
        try:
            for difference in await provision(connection):
                log.warning("%s", difference)
            # Before anything is pulled: what was decided while nobody ran counts too.
            await controls.start()
            await holding.start()
            await dedupe.start()
            await repair.start()
            # Before it pulls: what others hand over must find somebody, and what it refuses must not be its alone.
            await presence.start()
            for one in consumers:
                await one.start()
            queue.start()
            await guard.start(is_agent=True)
            await service.start()
            does = ", ".join([*self.handles, *self.capabilities])
            log.info("%s runs on %s and handles %s", self.name, connection.url, does or "nothing")
            try:
                async with (
                    Supervision(connection, self.name) as supervision,
                    span_status_told(connection, telemetry),
                ):
                    yield Replica(consumers, service, telemetry.metrics)
            finally:
                await presence.stop()
                if supervision.has_failed:
                    for one in consumers:
                        one.hurry()
                # All share one grace.
                handed_back, _ = await asyncio.gather(
                    asyncio.gather(*(one.drain(settings.grace_s) for one in consumers)), service.drain(settings.grace_s)
                )
                if any(handed_back):
                    log.warning("%s handed back %d messages that were still running", self.name, sum(handed_back))
        finally:
            await service.close()
            await guard.close()
            for part in (presence, peers, queue, repair, holding, controls, commits, dedupe):
                await part.stop()
            await telemetry.close()
            await connection.close()
