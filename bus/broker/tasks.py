"""Ending tasks for certain."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

log = logging.getLogger("bus.broker")

ASK_AGAIN_S = 1.0
ASKED_TIMES = 5


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
