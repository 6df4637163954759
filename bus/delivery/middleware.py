"""Middleware: the one way to wrap handlers and publishes.

A middleware is a function that gets what is about to happen and the next step, and awaits that step once:

    async def timed(message, call_next):
        started = time.perf_counter()
        await call_next(message)
        print(message.type, time.perf_counter() - started)

The first one given is the outermost. An exception that it raises, or lets pass, counts as the handler's own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from bus.envelope import Envelope

PublishNext = Callable[[Envelope], Awaitable[None]]
PublishMiddleware = Callable[[Envelope, PublishNext], Awaitable[None]]

Subject = TypeVar("Subject")


def wrap(
    innermost: Callable[[Subject], Awaitable[None]],
    middleware: Sequence[Callable[[Subject, Callable[[Subject], Awaitable[None]]], Awaitable[None]]],
) -> Callable[[Subject], Awaitable[None]]:
    """The innermost step inside all middleware."""
    step = innermost
    for outer in reversed(middleware):
        step = _inside(outer, step)
    return step


def _inside(
    outer: Callable[[Subject, Callable[[Subject], Awaitable[None]]], Awaitable[None]],
    step: Callable[[Subject], Awaitable[None]],
) -> Callable[[Subject], Awaitable[None]]:
    async def run(subject: Subject) -> None:
        await outer(subject, step)

    return run
