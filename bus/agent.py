"""Agents: handlers by message type, and how they run and stop."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from bus.broker.connection import Connection
from bus.broker.streams import provision
from bus.config import Settings
from bus.delivery.commits import Commits
from bus.delivery.consumer import Consumer
from bus.delivery.dedupe import Dedupe
from bus.delivery.handler import Handler
from bus.delivery.pipeline import Pipeline
from bus.envelope.grammar import is_agent_name, is_type_name
from bus.telemetry.spans import Telemetry

log = logging.getLogger("bus.agent")

Function = TypeVar("Function", bound=Callable[..., Any])


class Agent:
    """A named agent. Every process that runs it is one replica; replicas share its messages.

    `concurrency` is how many messages one replica handles at once.
    """

    def __init__(self, name: str, *, concurrency: int = 16) -> None:
        if not is_agent_name(name):
            raise ValueError(f"{name!r} is not an agent name: 1 to 64 letters, digits, _ and -")
        if concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}, it must be at least 1")
        self.name = name
        self.concurrency = concurrency
        self._handlers: dict[str, Handler] = {}
        self._broadcasts: set[str] = set()

    @property
    def handles(self) -> list[str]:
        """The message types that it has handlers for, sorted."""
        return sorted(self._handlers)

    def on(self, type: str, *, phase: str | None = None, broadcast: bool = False) -> Callable[[Function], Function]:
        """Registers the decorated function for one message type.

        `async def f(payload: Model, message: Message) -> None`; the annotation of the payload decides how it is
        validated, `message` may be left out, and a plain `def` runs in a worker thread. `phase` is the workflow
        phase of messages that come without one. `broadcast`: it also gets what others send to `*` with this type,
        once for the agent, whichever replica takes it. Raises ValueError for a second handler of the same type or a
        type that is not snake_case, TypeError for a signature that does not fit.
        """

        def register(function: Function) -> Function:
            if not is_type_name(type):
                raise ValueError(f"{type!r} is not a message type: snake_case, 1 to 64 characters")
            if type in self._handlers:
                raise ValueError(f"{self.name} already has a handler for {type!r}")
            self._handlers[type] = Handler.of(type, function, phase=phase)
            if broadcast:
                self._broadcasts.add(type)
            return function

        return register

    @contextlib.asynccontextmanager
    async def running(self, settings: Settings | None = None, **overrides: Any) -> AsyncIterator[None]:
        """Runs one replica for as long as the body runs, then drains it.

        Settings come from the environment and `overrides`. On exit it stops pulling, finishes what is in hand within
        `grace_s`, hands the rest back, and closes the connection. Raises BrokerError when it cannot start.
        """
        settings = settings or Settings.load(**overrides)
        connection = await Connection.open(settings, name=self.name)
        telemetry = Telemetry(self.name, namespace=settings.namespace)
        dedupe = Dedupe(connection, self.name)
        commits = Commits(connection, self.name, on_stored=dedupe.stored)
        pipeline = Pipeline(
            connection, telemetry, agent=self.name, handlers=self._handlers, dedupe=dedupe, commits=commits
        )
        consumer = Consumer(
            connection, pipeline, agent=self.name, concurrency=self.concurrency, broadcasts=self._broadcasts
        )
        try:
            for difference in await provision(connection):
                log.warning("%s", difference)
            await dedupe.start()
            await consumer.start()
            log.info("%s runs on %s and handles %s", self.name, connection.url, ", ".join(self.handles))
            try:
                yield
            finally:
                handed_back = await consumer.drain(settings.grace_s)
                if handed_back:
                    log.warning("%s handed back %d messages that were still running", self.name, handed_back)
        finally:
            await commits.stop()
            await dedupe.stop()
            await telemetry.close()
            await connection.close()
