"""Calling, as the rooms that handle messages and calls need it; `bus/calls/caller.py` does it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Any, Protocol

from bus.contracts.result import Result
from bus.envelope import Envelope
from bus.telemetry.context import TraceContext


class Streamed(Protocol):
    """A call whose result comes in chunks; `bus/calls/stream.py` says what holds."""

    call_id: str
    result: Result | None

    @property
    def next(self) -> int:
        """The number of the chunk that comes next."""
        ...

    def __aiter__(self) -> AsyncIterator[Any]:
        """The chunks."""
        ...

    async def aclose(self) -> None:
        """Stops reading, and cancels what has not ended."""
        ...


class Submitted(Protocol):
    """A task that was submitted; `bus/calls/tasks/task.py` is it."""

    id: str

    async def status(self) -> Any:
        """Its record now."""
        ...

    async def outcome(self, *, timeout_s: float | None = None) -> Result:
        """Waits for its end and returns the result, also a failed one."""
        ...

    async def result(self, *, timeout_s: float | None = None) -> Result:
        """As `outcome`, but raises the error of a failed one."""
        ...

    async def cancel(self) -> Any:
        """Cancels it; returns its record, which is terminal."""
        ...


class Calling(Protocol):
    """What calls capabilities in the course of a message or call, which is the `cause`."""

    def call(
        self, capability: str, arguments: Any, *, cause: Envelope, parent: TraceContext | None, **options: Any
    ) -> Awaitable[Result]:
        """Calls and returns the result; raises the error of a failed one."""
        ...

    def stream(
        self, capability: str, arguments: Any, *, cause: Envelope, parent: TraceContext | None, **options: Any
    ) -> Streamed:
        """Calls, and gives the chunks of the result as they come."""
        ...

    async def submit(
        self, capability: str, arguments: Any, *, cause: Envelope, parent: TraceContext | None, **options: Any
    ) -> Submitted:
        """Submits a task and returns it once it is stored."""
        ...
