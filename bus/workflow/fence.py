"""Fences: what keeps a holder that has lost its slot from acting, where it writes and where it sends."""

from __future__ import annotations

from typing import Protocol

from bus.broker.records import Records, Write


class Fence(Protocol):
    """A guard of everything that is done under it."""

    async def confirm(self) -> None:
        """Raises ToolError when the guard is lost; for what cannot be written together with it."""
        ...

    async def write(self, records: Records, write: Write) -> int | None:
        """Makes a write of the workflows' bucket, and raises instead when the guard is lost. None for a conflict."""
        ...


class _Open:
    """No guard."""

    async def confirm(self) -> None:
        return

    async def write(self, records: Records, write: Write) -> int | None:
        return await records.write(write.key, write.value, after=write.after)


NO_FENCE: Fence = _Open()
