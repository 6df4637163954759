"""Streams: how a client begins and resumes them, and that none outlives it (REG-7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypedDict, Unpack

from bus.broker.connection import Connection
from bus.calls.asked import MAX_WINDOW
from bus.calls.draft import CallDraft
from bus.calls.progress import OnProgress
from bus.calls.stream import WINDOW, Heard, OnEnd, Relay, Stream
from bus.calls.watch import Watch
from bus.contracts.result import Result
from bus.envelope import new_message_id


class StreamOptions(TypedDict, total=False):
    """What may be said about a streamed call; as for `Bus.call`, `window` in chunks."""

    timeout_s: float | None
    agent: str | None
    version: str | None
    retries: int
    repairs_left: int
    validate: bool
    workflow_id: str | None
    session_id: str | None
    window: int
    on_progress: OnProgress | None


class Streams:
    """The streams of one client."""

    def __init__(self, connection: Connection, watch: Watch, name: str) -> None:
        self._connection = connection
        self._watch = watch
        self._name = name
        self._open: set[Stream] = set()

    def begin(
        self,
        capability: str,
        arguments: Any,
        ask: Callable[[CallDraft], Awaitable[Result]],
        heard: Heard | None = None,
        relay: Relay | None = None,
        on_end: OnEnd | None = None,
        **options: Unpack[StreamOptions],
    ) -> Stream:
        """The stream of a new call. Raises ValueError for one that could never be sent, TypeError for other options."""
        if others := sorted(set(options) - set(StreamOptions.__annotations__)):
            raise TypeError(f"a stream has no {' and no '.join(others)}; it is resumed by its call_id")
        chunks, on_progress = options.pop("window", WINDOW.chunks), options.pop("on_progress", None)
        if not 1 <= chunks <= MAX_WINDOW:
            raise ValueError(f"window is {chunks}, it must be from 1 to {MAX_WINDOW} chunks")
        window = WINDOW._replace(chunks=chunks)
        call_id = new_message_id()
        draft = CallDraft(capability, arguments, id=call_id, observe=window, **options)  # type: ignore[misc]
        draft.check()
        return self._stream(
            call_id,
            ask=lambda: ask(draft),
            window=window,
            heard=heard,
            relay=relay,
            on_end=on_end,
            on_progress=on_progress,
        )

    def resume(
        self, call_id: str, *, after: int, timeout_s: float | None = None, on_progress: OnProgress | None = None
    ) -> Stream:
        """The stream of a call that was begun before, from the chunk after `after` on. Raises ValueError."""
        if after < 0 or not call_id or (timeout_s is not None and timeout_s <= 0):
            raise ValueError("a stream is resumed by its call_id, after a chunk from 0 on, with a timeout_s above 0")
        return self._stream(call_id, after=after, timeout_s=timeout_s, on_progress=on_progress)

    async def close(self) -> None:
        """Ends those that are still read, and cancels their work."""
        for stream in list(self._open):
            await stream.aclose()

    def _stream(self, call_id: str, **options: Any) -> Stream:
        return Stream(self._connection, self._watch, self._open, self._name, call_id=call_id, **options)
