"""An agent whose capabilities are those of connectors (REG-11)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from bus.agent import Agent, Replica
from bus.config import Settings
from bus.gateway.connector import Connector


class ConnectedAgent(Agent):
    """An agent that starts its connectors before anybody can call it, and stops them after its last call.

    It may have handlers and capabilities of its own beside them. Options are those of `Agent`. Raises as
    `Connector.register`.
    """

    def __init__(self, name: str, connectors: Sequence[Connector], **options: Any) -> None:
        super().__init__(name, **options)
        self.connectors = tuple(connectors)
        self._is_running = False
        for connector in self.connectors:
            connector.register(self)

    @contextlib.asynccontextmanager
    async def running(self, settings: Settings | None = None, **overrides: Any) -> AsyncIterator[Replica]:
        """Runs one replica as `Agent.running`; in one process one at a time, because connectors are not shared.

        Raises what `Connector.start` raises, and ValueError while it is running already.
        """
        if self._is_running:
            raise ValueError(f"{self.name} runs already in this process; load it again for a second replica")
        self._is_running = True
        try:
            async with contextlib.AsyncExitStack() as stack:
                for connector in self.connectors:
                    stack.push_async_callback(connector.stop)
                    await connector.start()
                yield await stack.enter_async_context(super().running(settings, **overrides))
        finally:
            self._is_running = False
