"""Workers: long-lived tasks that run deliveries, so that one that never waits costs no task of its own.

A worker runs what is queued until its delivery has to wait for something; only then the next worker is woken. Each
delivery has a context of its own, as in a task of its own: a context variable that a handler sets ends with it.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from bus.broker.pull import Delivery

log = logging.getLogger("bus.delivery")

Run = Callable[[Delivery], Coroutine[Any, Any, None]]


class Workers:
    """Runs deliveries in the order of `put`, at most `limit` at once.

    `run` settles a delivery and does not raise, except for a cancellation. `lost` hears of one whose worker ended
    all the same, so that its slot is free; it comes again after its ack wait.
    """

    def __init__(self, run: Run, *, lost: Callable[[Delivery], None], limit: int, name: str) -> None:
        self._run = run
        self._lost = lost
        self._limit = limit
        self._name = name
        self._queue: deque[Delivery] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._busy: dict[asyncio.Task[None], Delivery] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_roused = False
        self._stopping = False

    def put(self, delivery: Delivery) -> None:
        """Takes a delivery; it begins when a worker is free."""
        self._queue.append(delivery)
        if not self._is_roused:
            self._rouse()

    def take_back(self) -> list[Delivery]:
        """Takes away what has not begun."""
        left = list(self._queue)
        self._queue.clear()
        return left

    def cancel(self) -> int:
        """Cancels what runs, for good; returns how many were cancelled. What it does with its delivery is its own."""
        self._stopping = True
        for task in self._busy:
            task.cancel()
        return len(self._busy)

    def cancel_some(self, matches: Callable[[Delivery], bool]) -> int:
        """Cancels what runs of the deliveries that match; returns how many. Other workers go on with the rest."""
        found = [task for task, delivery in self._busy.items() if matches(delivery)]
        for task in found:
            task.cancel()
        return len(found)

    def close(self) -> None:
        """Ends the workers that wait; nothing may run any more."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()

    def _rouse(self) -> None:
        """Wakes one worker, unless one is on its way or all are busy."""
        if self._is_roused or self._stopping:
            return
        if self._idle:
            self._is_roused = True
            self._idle.pop().set_result(None)
        elif len(self._tasks) < self._limit:
            self._is_roused = True
            task = asyncio.create_task(self._work(), name=f"worker of {self._name}")
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _next(self) -> None:
        if self._queue:
            self._rouse()

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        while not self._stopping:
            self._is_roused = False
            while self._queue:
                self._busy[task] = delivery = self._queue.popleft()
                await _Apart(self._run(delivery), self._next)
            self._busy.pop(task, None)
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(woken)
            await woken

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        delivery = self._busy.pop(task, None)
        problem = None if task.cancelled() else task.exception()
        if problem is not None and delivery is not None:
            log.error("a worker of %s ended", self._name, exc_info=problem)
            self._lost(delivery)
        if not self._stopping:
            # A handler cancelled the task that it runs in, or worse: another worker goes on.
            self._is_roused = False
            self._next()


class _Apart:
    """Awaits a coroutine in a copy of the context; calls `waits` when it waits for the first time."""

    __slots__ = ("_coroutine", "_enter", "_waits")

    def __init__(self, coroutine: Coroutine[Any, Any, None], waits: Callable[[], None]) -> None:
        self._coroutine = coroutine
        self._enter = contextvars.copy_context().run
        self._waits: Callable[[], None] | None = waits

    def __await__(self) -> Generator[Any, Any, None]:
        return self  # type: ignore[return-value]

    def __iter__(self) -> _Apart:
        return self

    # The end, StopIteration, and whatever it raises pass through: that is the protocol of `await`.

    def __next__(self) -> Any:
        waited = self._enter(self._coroutine.send, None)
        if self._waits is not None:
            self._has_waited()
        return waited

    def send(self, value: Any) -> Any:
        waited = self._enter(self._coroutine.send, value)
        self._has_waited()
        return waited

    def throw(self, kind: Any, problem: BaseException | None = None, trace: object = None) -> Any:
        waited = self._enter(self._coroutine.throw, kind if problem is None else problem)
        self._has_waited()
        return waited

    def close(self) -> None:
        self._coroutine.close()

    def _has_waited(self) -> None:
        if self._waits is not None:
            self._waits()
            self._waits = None
