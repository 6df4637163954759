"""A TCP link that can be cut and stalled in the middle of a message, between a client and its server."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType

CHUNK = 16_384


class Link:
    """A proxy on a loopback port of its own. `async with Link(port) as link`, then connect to `link.url`."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._flows = asyncio.Event()
        self._flows.set()
        self._cut_after: int | None = None
        self._is_ending = False
        self._port = 0
        self._transports: set[asyncio.WriteTransport] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.cuts = 0

    @property
    def url(self) -> str:
        """Where to connect."""
        return f"nats://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Link:
        await self.up()
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._is_ending = True
        self._flows.set()
        self.down()
        await asyncio.gather(*self._tasks)

    def cut(self, *, after_bytes: int = 0) -> None:
        """Resets every connection once `after_bytes` more have passed: mostly in the middle of a message."""
        self._cut_after = after_bytes
        if not after_bytes:
            self._reset()

    def down(self) -> None:
        """Resets every connection and refuses new ones until `up`."""
        if self._server is not None:
            self._server.close()
        self._reset()

    async def up(self) -> None:
        """Takes connections again, on the same port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    def stall(self) -> None:
        """Passes nothing on any more, and closes nothing: both ends believe that the other is there."""
        self._flows.clear()

    def resume(self) -> None:
        """Passes on what has waited."""
        self._flows.set()

    def _reset(self) -> None:
        self.cuts += 1
        self._cut_after = None
        self._abort_all()

    def _abort_all(self) -> None:
        for transport in self._transports:
            transport.abort()
        self._transports.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._transports.add(writer.transport)
        with contextlib.suppress(OSError):
            if self._is_ending:
                return writer.transport.abort()
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
            self._transports.add(to_writer.transport)
            try:
                await asyncio.gather(self._pass(reader, to_writer), self._pass(to_reader, writer))
            finally:
                to_writer.transport.abort()
                self._transports.discard(to_writer.transport)
        writer.transport.abort()
        self._transports.discard(writer.transport)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            await self._flows.wait()
            if self._cut_after is not None and len(data) >= self._cut_after:
                writer.write(data[: self._cut_after])
                await writer.drain()
                await asyncio.sleep(0)
                self._reset()
                return
            if self._cut_after is not None:
                self._cut_after -= len(data)
            writer.write(data)
            await writer.drain()
        writer.transport.abort()
