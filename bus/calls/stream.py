"""The stream: a call as its reader sees it, chunk by chunk, across broken links and restarts (REG-7)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from bus.broker.connection import Connection
from bus.broker.reader import StreamReader
from bus.broker.streams import StreamNames, last_seq_of
from bus.broker.tasks import end
from bus.calls.asked import Window
from bus.calls.control import Presence, Verb, Word, presence
from bus.calls.progress import OnProgress, tell_progress
from bus.calls.records import Record, Told, read_record
from bus.calls.watch import Watch
from bus.contracts.result import Result, raised
from bus.errors import BusError, ErrorInfo, error
from bus.workflow.artifacts import Artifacts

WINDOW = Window(64, 4 << 20)
BEAT_S = 1.0
DOUBT_S = 0.5
LOOK_S = 0.25
LATE_S = 1.0
# After a broker's restart its clients come back within this time, in any order.
RETURN_S = 3.0
CANCELLED = error("tool.cancelled", "its reader left before the end").info

Ask = Callable[[], Awaitable[Result]]
Heard = Callable[..., None]
"""Hears where the chunks come from, as labels."""
Relay = Callable[[Record], Awaitable[None]]
"""Hears the first record and the last, where somebody observes the reader itself."""
OnEnd = Callable[[ErrorInfo | None], None]
"""Hears, once or more often, that nothing more is read, and which error ended it."""


class Stream:
    """One streamed call. `async for chunk in stream` gives the chunks in order, none lost and none doubled.

    It ends with `result` set, whose `meta["chunks"]` says how many there were, or raises the error that ended the work
    after the chunks before it. When its replica dies it raises `agent.unavailable` with `details.next_chunk`, within
    about two seconds. Leaving the loop early, in whatever way, cancels the work; `leave` does not. It is read
    once; `Bus.resume(call_id, after=next - 1)` goes on elsewhere.
    """

    def __init__(
        self,
        connection: Connection,
        watch: Watch,
        opened: set[Stream],
        name: str,
        *,
        call_id: str,
        ask: Ask | None = None,
        after: int = 0,
        window: Window = WINDOW,
        timeout_s: float | None = None,
        heard: Heard | None = None,
        relay: Relay | None = None,
        on_end: OnEnd | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        self.call_id = call_id
        self.result: Result | None = None
        self._connection = connection
        self._artifacts = Artifacts(connection)
        self._stream = StreamNames.of(connection.settings.namespace).streams
        self._watch = watch
        self._opened = opened
        self._name = name
        self._ask = ask
        # Who resumes does not know the window until the first record says it.
        self._window = window if ask is not None else Window(1, 1)
        self._deadline = float("inf") if timeout_s is None or ask is not None else time.monotonic() + timeout_s
        self._heard = heard
        self._relay = relay
        self._on_end = on_end
        self._on_progress = on_progress
        self._replica: tuple[str, str] | None = None
        self._is_begun = False
        self._is_left = False
        self._doubt: ErrorInfo | None = None
        self._failure: ErrorInfo | None = None
        self._number = 0
        self._seq = 0
        self._read = self._told = after
        self._unsaid_bytes = 0
        self._missed = 0
        self._wake = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None

    @property
    def next(self) -> int:
        """The number of the chunk that comes next."""
        return self._read + 1

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def __aiter__(self) -> AsyncGenerator[Any, None]:
        async with contextlib.aclosing(self.records()) as records:
            async for record in records:
                if record.told is Told.CHUNK:
                    yield record.payload["data"]

    async def records(self) -> AsyncGenerator[Record, None]:
        """All that is told about the call, chunks too, in order; ends and raises as the chunks alone do."""
        if self._is_begun:
            raise RuntimeError(f"the stream of {self.call_id} is read once; bus.resume(call_id, after=...) reads on")
        self._is_begun = True
        self._opened.add(self)
        try:
            if self._ask is not None:
                async for record in self._begin(self._ask):
                    yield record
            if self.result is None:
                async with contextlib.aclosing(self._follow()) as records:
                    async for record in records:
                        yield record
            if self.result is not None and self.result.error is not None:
                raise raised(self.result.error)
        except BusError as problem:
            self._failure = problem.info
            raise
        finally:
            await self.aclose()

    def leave(self) -> None:
        """Leaves the work to another reader: the end of this one does not cancel it any more."""
        self._is_left = True

    async def aclose(self) -> None:
        """Stops reading, and cancels the work unless it has ended or was left; a second call does nothing."""
        self._opened.discard(self)
        if self._on_end is not None:
            is_cancelled = self.result is None and self._failure is None and not self._is_left
            self._on_end(CANCELLED if is_cancelled else self._failure)
        beating, self._beating = self._beating, None
        await end(beating)
        if self.result is None and not self._is_left and self._replica is not None:
            self._is_left = True
            await asyncio.shield(self._watch.cancel(self._replica[0], self.call_id))

    # -- beginning --

    async def _begin(self, ask: Ask) -> AsyncGenerator[Record, None]:
        """Asks; yields what a callee that knows no streams has answered at once."""
        result = await ask()
        if result.error is not None:
            if result.error.details.get("reason") != "disconnected":
                raise raised(result.error)
            # The link broke before the answer came. If the work has begun, the stream says so.
            self._doubt = result.error
            self._deadline = time.monotonic() + self._connection.settings.publish_timeout_s
            return
        if result.meta.get("streaming"):
            self._replica = (result.data["agent"], result.data["instance"])
            self._deadline = time.monotonic() + result.data["timeout_s"] + LATE_S
            return
        self._read = 1
        if self._heard is not None:
            self._heard(*result.labels)
        self.result = Result(True, None, None, {**result.meta, "chunks": 1}, self.call_id)
        yield Record(1, Told.CHUNK, {"chunk": 1, "data": result.data}, "", "", self._name, 0, 0.0, result.labels)

    # -- reading --

    async def _follow(self) -> AsyncGenerator[Record, None]:
        subject = self._connection.subjects.stream_of(self.call_id)
        async with contextlib.AsyncExitStack() as stack:
            reader = StreamReader(self._connection, self._stream, subjects=[subject], start_seq=1)
            try:
                async with asyncio.timeout(self._left_s):
                    await stack.enter_async_context(reader)
            except TimeoutError:
                raise self._late() from None
            if reader.is_caught_up and self._ask is None:
                raise error("tool.execution_failed", f"no stream of {self.call_id!r} is stored; are 10 minutes over?")
            self._beating = self._connection.tasks.start(self._beat(), name=f"reader of {self.call_id}")
            while self.result is None:
                record = await self._next(reader, subject)
                if record is not None and self._is_next(record):
                    self._take(record)
                    if self._relay is not None and record.told in (Told.START, Told.END):
                        await self._relay(record)
                    if record.told is Told.STATUS and self._on_progress is not None:
                        await tell_progress(self._on_progress, record.payload)
                    yield record

    async def _next(self, reader: StreamReader, subject: str) -> Record | None:
        delivery = None
        while delivery is None:
            try:
                async with asyncio.timeout(LOOK_S):
                    delivery = await reader.next()
            except TimeoutError:
                await self._look(subject)
        arrived = delivery
        try:
            # A large one is kept apart, and the broker may be away just now.
            async with asyncio.timeout(self._left_s):
                record = await self._connection.patiently(lambda: read_record(arrived, self._artifacts))
        except TimeoutError:
            raise self._late() from None
        self._seq = delivery.stream_seq
        return record

    def _learn(self, start: Record) -> None:
        window = start.payload.get("window")
        if isinstance(window, dict) and type(window.get("chunks")) is type(window.get("bytes")) is int:
            self._window = Window(window["chunks"], window["bytes"])
        left_s = start.payload.get("timeout_s")
        if self._ask is not None and isinstance(left_s, int | float):
            # The callee ends the work in time and says so; this is for when nobody can say anything any more.
            self._deadline = time.monotonic() + left_s - start.age_s + LATE_S

    def _is_next(self, record: Record) -> bool:
        """Whether a record is new. Raises where one before it is missing, and for who may not read."""
        if self._replica is None:
            if record.caller != self._name:
                raise error(
                    "auth.permission_denied", f"{self.call_id!r} is a call of another client; resume it as that one"
                )
            self._replica, self._doubt = (record.agent, record.instance), None
            self._wake.set()
        # Anybody may publish under the id of a call, though only as himself.
        is_ours = (record.agent, record.instance) == self._replica
        if not is_ours or record.caller != self._name or record.number <= self._number:
            return False
        is_gap = self._number > 0 and record.number != self._number + 1
        if is_gap or record.chunk > self.next or (record.told is Told.END and record.payload["chunks"] > self._read):
            raise error(
                "tool.execution_failed",
                f"chunk {self.next} of {self.call_id!r} is not stored any more; chunks are kept for 10 minutes, and in "
                "all up to BUS_STREAM_MAX_BYTES",
                next_chunk=self.next,
                started=True,
            )
        self._number = record.number
        return record.told is not Told.CHUNK or record.chunk == self.next

    def _take(self, record: Record) -> None:
        if self._heard is not None and record.labels:
            self._heard(*record.labels)
        if record.told is Told.START:
            self._learn(record)
        elif record.told is Told.CHUNK:
            self._read = record.chunk
            self._unsaid_bytes += record.size_bytes
            if (self._read - self._told) * 2 >= self._window.chunks or self._unsaid_bytes * 2 >= self._window.bytes:
                self._wake.set()
        elif record.told is Told.END:
            self.result = _result(record, self.call_id)

    # -- whether somebody still works --

    async def _beat(self) -> None:
        """Tells the replica how far we are and hears that it is there, at least every second."""
        epoch, ready_at = self._connection.epoch, 0.0
        while True:
            pause_s = BEAT_S
            if self._replica is not None:
                self._told, self._unsaid_bytes = self._read, 0
                agent, instance = self._replica
                word = Word(Verb.CREDIT, self.call_id, self._told)
                said = await presence(self._connection, agent, instance, word, sender=self._name)
                if epoch != self._connection.epoch:
                    epoch, ready_at = self._connection.epoch, time.monotonic() + RETURN_S
                if said is Presence.HAS_IT:
                    self._missed = 0
                elif said in (Presence.GONE, Presence.HAS_NOT) and time.monotonic() >= ready_at:
                    self._missed, pause_s = self._missed + 1, DOUBT_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            self._wake.clear()

    async def _look(self, subject: str) -> None:
        """Raises when nothing more will come."""
        now = time.monotonic()
        if now >= self._deadline:
            raise raised(self._doubt) if self._doubt is not None else self._late()
        if self._doubt is not None and self._connection.is_connected:
            self._deadline = min(self._deadline, now + RETURN_S)
        if self._missed < 2 or not self._connection.is_connected:
            return
        try:
            stored = await last_seq_of(self._connection, self._stream, subject)
        except BusError:
            return  # Asked again soon.
        if stored <= self._seq:
            raise self._ended(
                "agent.unavailable", f"is cut off before chunk {self.next}: its replica is gone; it may have run on"
            )

    @property
    def _left_s(self) -> float:
        return max(0.1, self._deadline - time.monotonic())

    def _late(self) -> BusError:
        return self._ended("tool.timeout", "did not end in its time")

    def _ended(self, code: str, how: str) -> BusError:
        return error(code, f"the stream of {self.call_id} {how}", next_chunk=self.next, started=True)


def _result(end: Record, call_id: str) -> Result:
    """The result that the last record tells; a failed one's details say how many chunks there were too."""
    payload, chunks = end.payload, end.payload["chunks"]
    result = Result.from_payload({name: payload.get(name) for name in ("ok", "error", "meta")})
    info, meta = result.error, {**result.meta, "chunks": chunks}
    if info is not None:
        info = ErrorInfo(info.code, info.message, {**info.details, "chunks": chunks}, retryable=info.retryable)
    return Result(result.ok, None, info, meta, call_id)
