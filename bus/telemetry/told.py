"""What the code of users raises: contained, and told in one line for the wire or with its traceback for the log."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from typing import TypeVar

from bus.errors import BusError, error
from bus.text import one_line, plain

Subject = TypeVar("Subject")
Returned = TypeVar("Returned")

MAX_TOLD_CHARS = 2000
MAX_TRACE_CHARS = 20_000


async def contained(run: Callable[[Subject], Awaitable[Returned]], subject: Subject) -> Returned:
    """Awaits `run(subject)`; what would end the replica, or pass for a stop of ours, becomes the function's failure.

    Raises ToolError `tool.execution_failed` for those, and every ordinary exception as it is.
    """
    try:
        return await run(subject)
    except BaseException as problem:
        if (instead := instead_of(problem)) is not None:
            raise instead from problem
        raise


def instead_of(problem: BaseException) -> BusError | None:
    """The failure that counts in place of what a function of users raised; None when that may pass as it is."""
    if isinstance(problem, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            return None
        return error("tool.execution_failed", "CancelledError: the handler cancelled itself")
    if isinstance(problem, Exception | KeyboardInterrupt):
        return None
    return error("tool.execution_failed", told(problem))


def told(problem: BaseException) -> str:
    """An exception in one line, also one whose own text raises; at most 2,000 characters, all of which UTF-8 has."""
    return one_line("".join(traceback.format_exception_only(problem)), MAX_TOLD_CHARS)


def told_with_trace(problem: BaseException) -> str:
    """An exception with its traceback, for the log; at most 20,000 characters, all of which UTF-8 has."""
    return plain("".join(traceback.format_exception(problem)), MAX_TRACE_CHARS)
