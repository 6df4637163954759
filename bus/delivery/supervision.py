"""Supervision: a replica whose background task fails ends loudly, instead of standing there half dead."""

from __future__ import annotations

import asyncio
from types import TracebackType

from bus.broker.connection import Connection
from bus.errors import error


class Supervision:
    """`async with Supervision(connection, agent): ...`, around the body of one replica.

    When a background task of the connection fails, the body is cancelled, and the block raises BusError
    `internal.error` that names the task, with its exception as the cause. A cancellation from elsewhere stays one.
    """

    def __init__(self, connection: Connection, agent: str) -> None:
        self._connection = connection
        self._agent = agent
        self._body: asyncio.Task[object] | None = None
        self._cancelled_before = 0
        self._failed: tuple[str, BaseException] | None = None

    async def __aenter__(self) -> Supervision:
        self._body = asyncio.current_task()
        self._cancelled_before = self._body.cancelling() if self._body is not None else 0
        self._connection.tasks.on_failure(self._fail)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, _: TracebackType | None
    ) -> None:
        body, self._body = self._body, None
        if self._failed is None or body is None:
            return
        name, cause = self._failed
        if body.uncancel() <= self._cancelled_before and (kind is None or kind is asyncio.CancelledError):
            raise error(
                "internal.error",
                f"the background task {name!r} of {self._agent} failed with {type(cause).__name__}: {cause}; the log "
                "has the traceback, and the replica has to be started again",
            ) from cause

    @property
    def has_failed(self) -> bool:
        """Whether a background task has failed."""
        return self._failed is not None

    def _fail(self, name: str, problem: BaseException) -> None:
        if self._failed is None and self._body is not None:
            self._failed = (name, problem)
            self._body.cancel()
