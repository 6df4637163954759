"""Limits of one handler in one replica: how many run at once, how many begin a second, how long one may take."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What a handler may use. None means no limit of its own.

    A message that waits for its turn is in hand: it is kept alive, counts towards the agent's concurrency, and is
    given back on a stop. Raises ValueError for a limit that nothing could pass.
    """

    concurrency: int | None = None
    rate_per_s: float | None = None
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("concurrency", "rate_per_s", "timeout_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} is {value}, it must be above 0")


NO_LIMITS = Limits()


class Gate:
    """Lets runs begin within the limits. One for each handler of a running replica."""

    __slots__ = ("_interval_s", "_next_at", "_slots", "_timeout_s")

    def __init__(self, limits: Limits) -> None:
        self._slots = asyncio.Semaphore(limits.concurrency) if limits.concurrency is not None else None
        self._interval_s = 1 / limits.rate_per_s if limits.rate_per_s is not None else 0.0
        self._timeout_s = limits.timeout_s
        self._next_at = 0.0

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits for a turn, then bounds the body. Raises TimeoutError when the body takes too long."""
        async with self._slots or contextlib.nullcontext():
            if self._interval_s:
                await self._wait_for_rate()
            async with asyncio.timeout(self._timeout_s):
                yield

    async def _wait_for_rate(self) -> None:
        now = asyncio.get_running_loop().time()
        begin_at = max(now, self._next_at)
        self._next_at = begin_at + self._interval_s
        if begin_at > now:
            await asyncio.sleep(begin_at - now)
