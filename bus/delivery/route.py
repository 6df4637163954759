"""Routes: where an agent's messages of one type go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bus.delivery.handler import CallNext, Handler, HandlerMiddleware
from bus.delivery.limits import NO_LIMITS, Gate
from bus.delivery.message import Message
from bus.delivery.middleware import wrap
from bus.delivery.settlement import RetryPolicy


@dataclass(frozen=True, slots=True)
class Route:
    """Where messages of one type go: the handler inside its limits and the middleware, and its retry policy."""

    handler: Handler
    policy: RetryPolicy
    run: CallNext

    @classmethod
    def of(cls, handler: Handler, policy: RetryPolicy, middleware: Sequence[HandlerMiddleware]) -> Route:
        """The route of a handler; `policy` counts where it has none of its own."""
        run: CallNext = handler.call
        if handler.limits != NO_LIMITS:
            gate = Gate(handler.limits)

            async def limited(message: Message) -> None:
                async with gate.turn():
                    await handler.call(message)

            run = limited
        return cls(handler, handler.retry or policy, wrap(run, middleware))
