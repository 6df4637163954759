"""Calling, as the rooms that handle messages and calls need it; `bus/calls/caller.py` does it."""

from __future__ import annotations

from typing import Any, Protocol

from bus.contracts.result import Result
from bus.envelope import Envelope
from bus.telemetry.context import TraceContext


class Calling(Protocol):
    """What calls capabilities in the course of a message or call, which is the `cause`."""

    async def call(
        self, capability: str, arguments: Any, *, cause: Envelope, parent: TraceContext | None, **options: Any
    ) -> Result:
        """Calls and returns the result; raises the error of a failed one."""
        ...
