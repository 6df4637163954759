"""The responder: takes the calls to one replica of an agent into a bounded queue and answers each (REG-5)."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import time
from collections import deque
from collections.abc import Callable

from bus.broker.connection import Connection, Subscription
from bus.broker.parser import Arrival
from bus.broker.tasks import end
from bus.broker.wire import publish_command
from bus.calls.control import ALL, Verb, Word
from bus.calls.line import Line
from bus.calls.taken import Taken
from bus.envelope import Envelope
from bus.errors import BusError, ErrorInfo, Rejected, error

log = logging.getLogger("bus.calls")

SWEEP_S = 0.05
ASK_AGAIN_S = 1.0
STOP_S = 2.0
IN_A_ROW = 32


class Responder:
    """Answers calls, at most `concurrency` at once; up to `max_call_queue` more wait, the next is told `agent.busy`.

    Workers are kept and take one call after another, because a task for each call costs more than many a call.
    """

    def __init__(self, connection: Connection, line: Line, *, agent: str, instance: str, concurrency: int) -> None:
        self._connection = connection
        self._line = line
        self._agent = agent
        self._instance = instance
        self.concurrency = concurrency
        self.turned_away = 0
        self._max_queue = connection.settings.max_call_queue
        self._queue: deque[Taken] = deque()
        self._running: set[Taken] = set()
        self._workers: set[asyncio.Task[None]] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._said: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(maxsize=4096)
        self._subscriptions: list[Subscription] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._quiet = asyncio.Event()
        self._hurried = asyncio.Event()
        self._context = contextvars.copy_context()
        self._loop = asyncio.get_running_loop()
        self._is_stirring = False

    @property
    def in_flight(self) -> int:
        """How many calls run or wait here."""
        return len(self._queue) + len(self._running)

    @property
    def running(self) -> int:
        """How many calls run here."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """How many calls wait here."""
        return len(self._queue)

    async def start(self) -> None:
        """Begins to take calls. Raises BrokerError."""
        subjects, subscribe = self._connection.subjects, self._connection.subscribe
        self._tasks = [
            asyncio.create_task(self._sweep(), name=f"call timeouts of {self._agent}"),
            asyncio.create_task(self._speak(), name=f"quick answers of {self._agent}"),
        ]
        for instance in (self._instance, ALL):
            pattern = subjects.control(self._agent, instance, "*")
            self._subscriptions.append(await subscribe(pattern, self._hear))
        calls = subjects.calls_of(self._agent)
        self._subscriptions.append(await subscribe(calls, self._take, queue=self._agent))
        await self._connection.flush()

    async def drain(self, grace_s: float) -> int:
        """Takes no more calls, finishes those in hand within `grace_s`, ends the rest; returns how many those were.

        What had not begun, or is ended, is answered with `agent.unavailable`. `hurry` ends the grace.
        """
        if self._subscriptions:
            await self._subscriptions[-1].drain()
        await self._until_quiet(grace_s)
        left = self.in_flight
        for taken in self._queue:
            self._say(taken.message, self._stopping(started=False))
        self._queue.clear()
        for taken in list(self._running):
            taken.end(self._stopping(started=True))
        await self._until_quiet(STOP_S, hurried=False)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._said.join()
        await self.close()
        return left

    async def close(self) -> None:
        """Stops at once; a second call does nothing."""
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            await subscription.drain()
        await end(*self._workers, *self._tasks)

    def hurry(self) -> None:
        """Ends the grace of a drain, now or when it begins; a second call does nothing."""
        self._hurried.set()

    def end_those(self, why: Callable[[Envelope], ErrorInfo | None]) -> None:
        """Ends the calls that run and for which there is a reason; those that wait are looked at when they begin."""
        for taken in list(self._running):
            if taken.envelope is not None and (reason := why(taken.envelope)) is not None:
                taken.end(reason)

    # -- taking --

    def _take(self, message: Arrival) -> None:
        if len(self._queue) >= self._max_queue:
            self.turned_away += 1
            self._say(message, self._busy())
            return
        self._queue.append(Taken(message))
        if not self._is_stirring:
            self._is_stirring = True
            self._loop.call_soon(self._stir)

    def _stir(self) -> None:
        """Sets workers to work: one, which answers all that has arrived, unless calls are found to wait for something.

        Then each that waits in the queue needs one of its own.
        """
        wanted = min(len(self._queue), self.concurrency if self._running else 1)
        woken = 0
        while woken < wanted and self._wake():
            woken += 1
        self._is_stirring = woken > 0
        if woken:
            self._loop.call_soon(self._stir)  # after they have begun

    def _wake(self) -> bool:
        while self._idle:
            waiting = self._idle.pop()
            if not waiting.done():
                waiting.set_result(None)
                return True
        if len(self._workers) >= self.concurrency:
            return False
        self._start_worker()
        return True

    def _start_worker(self) -> None:
        worker = asyncio.create_task(self._work(), context=self._context.copy())
        self._workers.add(worker)
        worker.add_done_callback(self._workers.discard)

    async def _work(self) -> None:
        task = asyncio.current_task()
        before = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        in_a_row = 0
        while True:
            if not self._queue:
                in_a_row = 0
                idle = loop.create_future()
                self._idle.append(idle)
                await idle
                continue
            if (in_a_row := in_a_row + 1) % IN_A_ROW == 0:
                await asyncio.sleep(0)
                if not self._queue:
                    continue
            taken = self._queue.popleft()
            taken.task = task
            self._running.add(taken)
            try:
                reply = await self._line.answer(taken)
            finally:
                self._running.discard(taken)
                taken.leave()
            if reply is not None and self._post(taken.message.reply, reply):
                await self._relieve()
            if not self._running and not self._queue:
                self._quiet.set()
            if contextvars.copy_context() != before:
                # The capability left something in its context, and the next call must not find it.
                return self._replaced()

    def _replaced(self) -> None:
        if self._queue:
            self._start_worker()

    def _post(self, subject: str, data: bytes) -> bool:
        """Sends an answer; what is sent in one turn of the loop is one write. True: more waits than should."""
        try:
            return self._connection.post(publish_command(subject, "", b"", data))
        except BusError as problem:
            log.warning("%s: a result cannot be sent: %s", self._agent, problem.info.message)
            return False

    async def _relieve(self) -> None:
        with contextlib.suppress(BusError):  # What comes next is told it.
            await self._connection.relieve()

    # -- answering at once --

    def _say(self, message: Arrival, why: ErrorInfo) -> None:
        """Answers without running anything, in the order of the messages; beyond 4,096 that wait nothing is said."""
        taken = Taken(message)
        taken.ended = why
        answer = self._line.refusal(taken, why)
        with contextlib.suppress(asyncio.QueueFull):
            if message.reply:
                self._said.put_nowait((message.reply, answer or b""))

    async def _speak(self) -> None:
        while True:
            subject, data = await self._said.get()
            if data and self._post(subject, data):
                await self._relieve()
            self._said.task_done()

    def _busy(self) -> ErrorInfo:
        return error(
            "agent.busy",
            f"{self._agent} has {len(self._queue)} calls waiting, its limit; try again, or another agent",
            started=False,
            retry_after_ms=100,
        ).info

    def _stopping(self, *, started: bool) -> ErrorInfo:
        return error(
            "agent.unavailable", f"this replica of {self._agent} stops; another one may answer", started=started
        ).info

    # -- the control line --

    def _hear(self, message: Arrival) -> None:
        said = Word.decode(message.data)
        if said is None:
            return
        call_id, sender = said.tool_call_id, message.subject.rpartition(".")[2]
        if said.verb is Verb.CREDIT:
            for taken in self._running:
                if taken.feed is not None and self._is(taken, call_id, sender):
                    taken.feed.grant(said.read)
        if said.verb is not Verb.CANCEL:
            if message.reply and not self._said.full():
                found = any(self._is(taken, call_id) for taken in (*self._running, *self._queue))
                self._said.put_nowait((message.reply, b"yes" if found else b"no"))
            return
        why = error("tool.cancelled", "cancelled by its caller").info
        for taken in list(self._queue):
            if self._is(taken, call_id, sender):
                self._queue.remove(taken)
                self._say(taken.message, why)
        for taken in self._running:
            if self._is(taken, call_id, sender):
                taken.end(why)

    def _is(self, taken: Taken, call_id: str, sender: str | None = None) -> bool:
        try:
            asked = self._line.read(taken)
        except Rejected:
            return False
        return asked.tool_call_id == call_id and (
            sender is None or (taken.envelope is not None and taken.envelope.sender == sender)
        )

    # -- timeouts --

    async def _sweep(self) -> None:
        asked_at: dict[Taken, float] = {}
        while True:
            await asyncio.sleep(SWEEP_S)
            now = time.monotonic()
            asked_at = {taken: at for taken, at in asked_at.items() if taken in self._running}
            for taken in list(self._running):
                is_late = taken.ends_at <= now
                is_alone = taken.feed is not None and taken.feed.is_abandoned()
                if (is_late or is_alone) and now - asked_at.get(taken, 0.0) >= ASK_AGAIN_S:
                    asked_at[taken] = now
                    late = error("tool.timeout", f"{taken.name} did not end in its time")
                    taken.end((late if is_late else error("tool.cancelled", "nobody reads its stream any more")).info)

    async def _until_quiet(self, timeout_s: float, *, hurried: bool = True) -> None:
        deadline = time.monotonic() + timeout_s
        while self.in_flight and not (hurried and self._hurried.is_set()):
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._quiet.clear()
            waits = [asyncio.create_task(self._quiet.wait())]
            if hurried:
                waits.append(asyncio.create_task(self._hurried.wait()))
            try:
                await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await end(*waits)
