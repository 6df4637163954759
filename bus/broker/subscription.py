"""A subscription, as its owner holds it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from bus.broker.parser import Arrival

if TYPE_CHECKING:
    from nats.aio.subscription import Subscription as NatsSubscription

Callback = Callable[[Arrival], None]
End = Callable[["Subscription", "NatsSubscription | None", float], Awaitable[None]]


class Subscription:
    """A subscription that outlives the client under it: a rebuilt connection subscribes again."""

    __slots__ = ("_end", "callback", "live", "queue", "subject")

    def __init__(self, subject: str, callback: Callback, queue: str, *, end: End) -> None:
        self._end = end
        self.subject = subject
        self.queue = queue
        self.callback = callback
        self.live: NatsSubscription | None = None

    async def drain(self, timeout_s: float = 2.0) -> None:
        """Stops delivery; every message that the server sent before is still passed to the callback.

        Bounded by `timeout_s`; a second call does nothing.
        """
        live, self.live = self.live, None
        await self._end(self, live, timeout_s)
