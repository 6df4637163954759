"""Tasks that run in the background: who hears when one fails, and ending them for certain."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger("bus.broker")

ASK_AGAIN_S = 1.0
ASKED_TIMES = 5

Failed = Callable[[str, BaseException], None]


class BackgroundTasks:
    """The background tasks over one connection. One that ends by an exception is told, never forgotten."""

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        self._listeners: list[Failed] = []

    def on_failure(self, listener: Failed) -> None:
        """Calls `listener` with the name and the exception of a task that failed. It must neither block nor raise."""
        self._listeners.append(listener)

    def start(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Starts a task, which its caller owns and ends with `end`."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        problem = None if task.cancelled() else task.exception()
        if problem is not None:
            log.error("the background task %r failed", task.get_name(), exc_info=problem)
            for listener in list(self._listeners):
                listener(task.get_name(), problem)


async def end(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancels tasks and waits until they have ended, asking again: libraries below us swallow a cancellation.

    Bounded; a task that does not end at all is told in the log. What the tasks raise is not raised here.
    """
    left = {task for task in tasks if task is not None and not task.done()}
    for _ in range(ASKED_TIMES):
        if not left:
            return
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=ASK_AGAIN_S)
    for task in left:
        log.error("the task %r does not end", task.get_name())
