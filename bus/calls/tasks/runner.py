"""The runner: what one replica does with a task that is delivered to it (REG-8).

The message comes through the pipeline of durable messages, which keeps it alive, gives it back on a stop and delivers
it again after a crash; the record says whether there is something left to do. The work takes the line of a call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from bus.broker.connection import Connection, Subscription
from bus.broker.parser import Arrival
from bus.broker.tasks import end
from bus.broker.wire import header_block
from bus.calls.asked import Asked
from bus.calls.capability import Capability
from bus.calls.control import Presence, Verb, Word, presence
from bus.calls.draft import CallDraft
from bus.calls.index import Offer
from bus.calls.line import Line
from bus.calls.taken import Taken
from bus.calls.tasks.record import TaskRecord, TaskState
from bus.calls.tasks.store import NoSuchTask, TaskStore, now
from bus.calls.tasks.submission import TASK_ID, cancel, cancel_below, digest_of
from bus.envelope import Envelope, codec
from bus.errors import BusError, ErrorInfo, PermanentFailure, error
from bus.workflow.references import DATA_REF

log = logging.getLogger("bus.calls")

# How long a capability has to end once it is cancelled, and how often it is asked.
END_S = 5.0
ASK_AGAIN_S = 1.0
GIVE_BACK_S = 2.0
# What another replica may have, and how soon it should get it.
NOT_HERE = frozenset({"tool.unknown_capability", "registry.no_common_version"})
ELSEWHERE_MS = 200

Attempts = Callable[[str], int]
"""How often a task that fails with this error code is tried in all."""
Offers = Callable[[CallDraft], Awaitable[list[Offer]]]


class Delivered(Protocol):
    """A durable message in the hands of the pipeline."""

    @property
    def envelope(self) -> Envelope:
        """The request."""
        ...

    @property
    def traceparent(self) -> str | None:
        """The span that handles it."""
        ...


class Runner:
    """Runs the tasks of one replica."""

    def __init__(
        self,
        connection: Connection,
        line: Line,
        *,
        agent: str,
        instance: str,
        capabilities: Mapping[str, Capability],
        attempts: Attempts,
        offers: Offers,
    ) -> None:
        self._connection = connection
        self._line = line
        self._agent = agent
        self._replica = f"task-{instance}"
        self._capabilities = capabilities
        self._attempts = attempts
        self._offers = offers
        self._store = TaskStore(connection)
        self._in_hand: set[str] = set()
        self._left: set[asyncio.Task[bytes | None]] = set()
        self._said: set[asyncio.Task[None]] = set()
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        """Begins to answer other replicas that ask what it has in hand. Raises BrokerError."""
        pattern = self._connection.subjects.control(self._agent, self._replica, "*")
        self._subscription = await self._connection.subscribe(pattern, self._hear)

    async def close(self) -> None:
        """Stops; a second call does nothing."""
        if self._subscription is not None:
            subscription, self._subscription = self._subscription, None
            await subscription.drain()
        await end(*self._left, *self._said)

    async def handle(self, payload: Any, message: Delivered) -> None:
        """Takes one delivery of a task as far as it goes now.

        Returns when the task has ended, whoever ended it. Raises what the pipeline shall do: a retryable error to
        deliver it again later, another one to make a dead letter of it.
        """
        record = await self._checked(message.envelope)
        if record.id in self._in_hand:
            raise self._busy(record.id)  # A second copy, stored when somebody submitted it again.
        self._in_hand.add(record.id)
        try:
            await self._handle(record, message)
        finally:
            self._in_hand.discard(record.id)

    async def set_aside(self, envelope: Envelope) -> None:
        """A person has cancelled the workflow that a task belongs to: the task ends as cancelled."""
        with contextlib.suppress(NoSuchTask):
            await cancel(self._store, envelope.message_id, by=self._agent)

    async def _handle(self, record: TaskRecord, message: Delivered) -> None:
        if record.is_terminal:
            return await self._settle(record)
        await self._yield_to_another(record)
        if await self._is_cancelled_above(record):
            await cancel(self._store, record.id, by=self._agent)
            return
        if record.attempts >= self._attempts("tool.execution_failed"):
            return await self._give_up(record)
        begun = await self._store.change(record.id, lambda one: self._begin(one, record))
        if begun.record.is_terminal:
            return await self._settle(begun.record)
        if not begun.is_ours:
            raise self._busy(record.id)
        await self._run(begun.record, message)

    def _begin(self, now_is: TaskRecord, seen: TaskRecord) -> TaskRecord | None:
        # Not what another replica has begun since it was looked at.
        is_same = (now_is.state, now_is.attempts) == (seen.state, seen.attempts)
        return now_is.begun(self._replica, now()) if is_same else None

    def _busy(self, task_id: str) -> BusError:
        wait_ms = round(self._connection.settings.ack_wait_s * 1000)
        return error("agent.busy", f"another delivery of the task {task_id} is in hand", retry_after_ms=wait_ms)

    # -- before --

    async def _checked(self, envelope: Envelope) -> TaskRecord:
        """The record of a request. Raises Rejected for a request that is not the one that was recorded."""
        asked = Asked.of(envelope)
        try:
            record = await self._store.read(envelope.message_id)
        except NoSuchTask:
            raise error(
                "protocol.malformed",
                f"{envelope.message_id} names no task: none was recorded, or it is forgotten; use Bus.submit",
                path="message_id",
            ) from None
        # Who asks an agent itself is recorded as the asker; the agent then sends the message to itself.
        is_sender = envelope.sender in (record.sender, record.agent)
        fits = (record.agent, record.capability, record.digest) == (
            self._agent, asked.tool_name, digest_of(asked.arguments),
        )  # fmt: skip
        if not is_sender or not fits:
            raise error("protocol.malformed", f"the request is not that of the task {record.id}", path="payload")
        return record

    async def _settle(self, record: TaskRecord) -> None:
        """A message of a task that has ended already: nothing runs."""
        log.info("%s: the task %s is %s already; nothing runs", self._agent, record.id, record.state)
        if record.state is TaskState.CANCELLED:
            # Who cancelled it may have ended before it came to these.
            await cancel_below(self._store, record.id, by=self._agent)

    async def _yield_to_another(self, record: TaskRecord) -> None:
        """Lets a replica that lives go on. One that says nothing has lost its message by now."""
        if record.state is not TaskState.RUNNING or record.replica in (None, self._replica):
            return
        word = Word(Verb.ALIVE, record.id)
        said = await presence(self._connection, self._agent, str(record.replica), word, sender=self._agent)
        if said is Presence.HAS_IT:
            raise self._busy(record.id)
        log.warning("the task %s is taken over from a replica that is gone", record.id)

    async def _is_cancelled_above(self, record: TaskRecord) -> bool:
        if record.parent is None:
            return False
        try:
            return (await self._store.read(record.parent)).state is TaskState.CANCELLED
        except NoSuchTask:
            return False

    async def _give_up(self, record: TaskRecord) -> None:
        told = (
            f"the task {record.id} began {record.attempts} times, and each time its replica ended; it probably ends it"
        )
        info = PermanentFailure(told).info
        given_up = await self._store.change(
            record.id, lambda one: one.failed(record.attempts, one.refusal(info), now())
        )
        if given_up.is_ours:
            raise PermanentFailure(told)

    # -- the run --

    async def _run(self, record: TaskRecord, message: Delivered) -> None:
        taken = self._taken(record, message)
        work = asyncio.create_task(self._line.answer(taken), name=f"task {record.id}")
        taken.task = work  # type: ignore[assignment]
        ended = asyncio.create_task(self._store.ended(record.id), name=f"end of the task {record.id}")
        try:
            limit_s = self._limit_s(record)
            await asyncio.wait({work, ended}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if ended.done() and not work.done():
                await self._stop(work, taken, _cancelled(record))
                return await self._settle(ended.result())
            if not work.done():
                told = f"{record.capability} did not end within {limit_s:g} s"
                await self._stop(work, taken, error("tool.timeout", told).info)
            await self._conclude(record, work, taken)
        except asyncio.CancelledError:
            # This replica stops; the message goes to another one.
            work.cancel()
            await asyncio.wait({work}, timeout=GIVE_BACK_S)
            await self._give_back(record)
            raise
        finally:
            await end(ended)

    def _taken(self, record: TaskRecord, message: Delivered) -> Taken:
        headers = {} if message.traceparent is None else {"traceparent": message.traceparent}
        subject = self._connection.subjects.call(self._agent, record.sender, record.capability)
        taken = Taken(Arrival(subject, "task", b"", header_block(headers) if headers else b""))
        extensions = {**message.envelope.extensions, TASK_ID: record.id}
        taken.envelope = message.envelope.replace(sender=record.sender, extensions=extensions)
        taken.hold(Asked.of(message.envelope))
        taken.task_id, taken.attempt = record.id, record.attempts
        return taken

    def _limit_s(self, record: TaskRecord) -> float:
        left_s = max(0.0, (record.deadline_at - now()).total_seconds())
        capability = self._capabilities.get(record.capability)
        return left_s if capability is None else min(left_s, capability.card.timeout_s)

    async def _stop(self, work: asyncio.Task[bytes | None], taken: Taken, why: ErrorInfo) -> None:
        """Cancels the work, asking again; what does not end at all is left behind, and its slot is free."""
        until = END_S
        while not work.done() and until > 0:
            taken.end(why)
            await asyncio.wait({work}, timeout=ASK_AGAIN_S)
            until -= ASK_AGAIN_S
        if not work.done():
            log.error("%s: %s does not end although it is cancelled; it is left behind", self._agent, taken.name)
            self._left.add(work)
            work.add_done_callback(self._left.discard)

    async def _conclude(self, record: TaskRecord, work: asyncio.Task[bytes | None], taken: Taken) -> None:
        """Writes what the work came to, or has it tried again."""
        if work.done():
            payload, reference, info = _read(record, work.result())
        else:
            payload, reference, info = None, None, taken.ended
        if info is None:
            stored = await self._store.change(record.id, lambda one: one.succeeded(payload, reference, now()))
            if not stored.is_ours:
                state = stored.record.state
                log.info("%s: the task %s is %s; its late result is dropped", self._agent, record.id, state)
            return
        is_last = record.attempts >= self._attempts(info.code) or now() >= record.deadline_at
        is_elsewhere = info.code in NOT_HERE and not taken.denied and await self._is_elsewhere(record)
        if is_elsewhere or (info.retryable and not is_last):
            counts = not is_elsewhere and not info.code.startswith("broker.")
            given_back = await self._store.change(record.id, lambda one: one.given_back(record.attempts, counts=counts))
            if given_back.is_ours:
                raise _again(info)
            return
        refusal = payload or record.refusal(info)
        await self._store.change(record.id, lambda one: one.failed(record.attempts, refusal, now()))

    async def _is_elsewhere(self, record: TaskRecord) -> bool:
        """Whether another replica of this agent, an older or newer one, can do it (rolling upgrades)."""
        try:
            return bool(await self._offers(CallDraft(record.capability, agent=self._agent)))
        except BusError:
            return False

    async def _give_back(self, record: TaskRecord) -> None:
        try:
            async with asyncio.timeout(GIVE_BACK_S):
                await self._store.change(record.id, lambda one: one.given_back(record.attempts, counts=False))
        except (TimeoutError, BusError) as problem:
            log.debug("the record of the task %s says that it runs: %s", record.id, problem)

    # -- the control line --

    def _hear(self, message: Arrival) -> None:
        said = Word.decode(message.data)
        if said is not None and said.verb is Verb.ALIVE and message.reply:
            has_it = said.tool_call_id in self._in_hand
            answer = asyncio.create_task(self._say(message.reply, b"yes" if has_it else b"no"))
            self._said.add(answer)
            answer.add_done_callback(self._said.discard)

    async def _say(self, reply: str, word: bytes) -> None:
        try:
            await self._connection.publish(reply, word)
        except BusError as problem:
            log.debug("who asked for a task is not answered: %s", problem.info.message)


def _read(record: TaskRecord, answer: bytes | None) -> tuple[dict[str, Any] | None, str | None, ErrorInfo | None]:
    """The payload of a result, or the reference to it, and its error."""
    assert answer is not None
    fields = codec.parse(answer)
    reference = (fields.get("extensions") or {}).get(DATA_REF)
    if reference is not None and fields.get("status") == "success":
        return None, reference, None
    if reference is not None:
        return None, None, error("tool.execution_failed", f"{record.capability} failed with an error of more than "
                                 "the inline limit").info  # fmt: skip
    payload = {**fields["payload"], "meta": {**fields["payload"]["meta"], "task_id": record.id}}
    return payload, None, None if payload["ok"] else ErrorInfo.from_wire(payload["error"])


def _again(info: ErrorInfo) -> BusError:
    details = {"retry_after_ms": ELSEWHERE_MS} if info.code in NOT_HERE else dict(info.details)
    again = error(info.code, info.message, retryable=True)
    again.info = ErrorInfo(info.code, info.message, details, retryable=True)
    return again


def _cancelled(record: TaskRecord) -> ErrorInfo:
    return error("tool.cancelled", f"the task {record.id} has ended without this run").info
