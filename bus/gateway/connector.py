"""Connectors: a service that knows nothing of the bus, as capabilities of an agent (REG-11)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bus.agent import Agent
from bus.calls.call import Call


@dataclass(frozen=True, slots=True)
class Wrapped:
    """One thing that a service can do: the name of the capability, and the rest of its card, as `Agent.capability`."""

    name: str
    card: Mapping[str, Any] = field(default_factory=dict, hash=False)


class Connector(ABC):
    """A wrapper of five methods around an old service; a new kind of service writes `dispatch`, and what it needs more.

    Its life: `register` puts what it wraps on an agent; while the agent runs it is started, dispatches, and is stopped
    after the last call has ended. `ConnectedAgent` does all of that.
    """

    def __init__(self, wrapped: Sequence[Wrapped]) -> None:
        self.wrapped = tuple(wrapped)

    async def start(self) -> None:  # noqa: B027  a service that needs no start is fine
        """Opens what dispatching needs. Raises BusError, and the agent then does not run."""

    async def stop(self) -> None:  # noqa: B027
        """Closes it, in bounded time; a second call does nothing."""

    def register(self, agent: Agent) -> None:
        """Puts a capability for each wrapped thing on the agent, before that runs.

        Raises as `Agent.capability`: RegistryError with everything that is wrong with a card, ValueError for a second
        one of the same name.
        """
        for one in self.wrapped:
            agent.capability(one.name, **one.card)(self._function(one.name))

    def unregister(self, agent: Agent) -> None:
        """Takes the capabilities back; those that are not there are left alone."""
        for one in self.wrapped:
            agent.withdraw(one.name)

    @abstractmethod
    async def dispatch(self, capability: str, arguments: dict[str, Any], call: Call) -> Any:
        """Does what the capability says, and returns its result as JSON values.

        The arguments fit the capability's schema and have its defaults. Raises BusError for a failure. It is cancelled
        when the caller gives up and when the time is over, and must then leave nothing running.
        """

    def _function(self, capability: str) -> Callable[[dict[str, Any], Call], Awaitable[Any]]:
        async def run(arguments: dict[str, Any], call: Call) -> Any:
            return await self.dispatch(capability, arguments, call)

        return run
