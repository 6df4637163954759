"""Artifacts: content that travels by reference, named by its SHA-256."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from bus.broker.connection import Connection
from bus.broker.objects import Objects
from bus.broker.streams import StreamNames
from bus.errors import error
from bus.workflow.fence import NO_FENCE, Fence

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ArtifactRef:
    """What a message carries instead of the content."""

    name: str
    sha256: str
    size_bytes: int
    media_type: str


class Artifacts:
    """The artifacts of a bus, shared by all its agents. Kept for 30 days, or as long as the history."""

    __slots__ = ("_connection", "_fence", "_objects")

    def __init__(self, connection: Connection, *, fence: Fence = NO_FENCE) -> None:
        self._connection = connection
        self._fence = fence
        self._objects = Objects(connection, StreamNames.of(connection.settings.namespace).artifacts)

    def under(self, fence: Fence) -> Artifacts:
        """The same for who may only store while a fence holds."""
        return Artifacts(self._connection, fence=fence)

    async def put(self, data: bytes, *, name: str, media_type: str = "text/plain") -> ArtifactRef:
        """Stores content; the same content is stored once, and storing it again does nothing.

        Raises BrokerError `broker.unavailable`; under a slot that is lost ToolError `agent.busy`.
        """
        await self._fence.confirm()
        sha256 = hashlib.sha256(data).hexdigest()
        await self._objects.put(sha256, data)
        return ArtifactRef(name, sha256, len(data), media_type)

    async def get(self, sha256: str, *, max_bytes: int | None = None) -> bytes:
        """The content, its digest checked.

        Raises ToolError `tool.execution_failed` when there is none under this digest (never stored, or older than
        the history), BrokerError when the broker cannot answer or the content is damaged (then not retryable), Rejected
        `protocol.too_large` over `max_bytes`.
        """
        data = await self._objects.get(sha256, max_bytes=max_bytes) if _SHA256.fullmatch(sha256) else None
        if data is None:
            raise error("tool.execution_failed", f"no artifact {sha256}; it was never stored, or has expired")
        return data
