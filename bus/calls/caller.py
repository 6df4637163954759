"""The caller: finds who offers a capability, asks, and goes elsewhere when that is safe (REG-4, TOOL-5)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from bus.broker.connection import Connection
from bus.broker.wire import header_block, publish_command
from bus.calls.asked import Asked, Window
from bus.calls.attempts import Attempts
from bus.calls.attributes import call_attributes
from bus.calls.course import Course
from bus.calls.directory import Capabilities, Directory
from bus.calls.draft import CallDraft
from bus.calls.guard import Guard
from bus.calls.index import Offer
from bus.calls.keeping import keep
from bus.calls.lookup import Lookup
from bus.calls.precheck import Precheck
from bus.calls.progress import OnProgress, with_progress
from bus.calls.stream import Stream
from bus.calls.streams import Streams
from bus.calls.tasks.submission import Submission, Wish
from bus.calls.tasks.task import Task
from bus.calls.watch import Watch
from bus.contracts.result import Result, raised
from bus.envelope import Envelope, new_message_id, new_trace_id
from bus.errors import BusError
from bus.telemetry.context import TraceContext
from bus.telemetry.spans import SpanKind, Telemetry
from bus.trust import budget
from bus.trust.accounts import Accounts
from bus.workflow.recording import RECORDED

IN_FLIGHT = 64


class Caller:
    """Calls capabilities over one connection. Safe to use from many tasks."""

    def __init__(self, connection: Connection, telemetry: Telemetry, name: str, guard: Guard) -> None:
        self.directory = Directory(connection)
        self.accounts = Accounts(connection)
        self.submission = Submission(connection, telemetry, name)
        self._connection = connection
        self._telemetry = telemetry
        self._name = name
        self._watch = Watch(connection, self.directory, name)
        self.capabilities = Capabilities(self.directory, name, guard.rules)
        self._lookup = Lookup(self.directory, name, guard, timeout_s=connection.settings.call_timeout_s)
        self.registered = self._lookup.registered
        self._witness = guard.witness
        self._attempts = Attempts(connection, self._watch, name, guard.witness)
        self._precheck = Precheck()
        self.streams = Streams(connection, self._watch, name)
        self._turn = random.randrange(1 << 16)

    def call(
        self,
        capability: str,
        arguments: Any = None,
        *,
        cause: Envelope | None = None,
        parent: TraceContext | None = None,
        on_progress: OnProgress | None = None,
        **options: Any,
    ) -> Coroutine[Any, Any, Result]:
        """Calls and returns the result; raises the error of a failed one. Options are the fields of `CallDraft`."""
        draft = CallDraft(capability, arguments, **options)
        return self.result(draft, cause=cause, parent=parent, on_progress=on_progress)

    async def result(
        self,
        draft: CallDraft,
        *,
        cause: Envelope | None = None,
        parent: TraceContext | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result:
        """Calls and returns the result; raises the error of a failed one."""
        if on_progress is None:
            result = await self.ask(draft, cause=cause, parent=parent)
        else:
            call_id = draft.id or new_message_id()
            observed = draft._replace(id=call_id, observe=Window())
            result = await with_progress(
                self._connection, call_id, lambda: self.ask(observed, cause=cause, parent=parent), on_progress
            )
        if result.error is not None:
            result.unwrap()
        return result

    def stream(
        self,
        capability: str,
        arguments: Any = None,
        *,
        cause: Envelope | None = None,
        parent: TraceContext | None = None,
        **options: Any,
    ) -> Stream:
        """The stream of a call, which begins when it is read; see `Streams.begin`."""
        course = Course(self._telemetry.metrics.calls, capability)

        async def ask(draft: CallDraft) -> Result:
            course.begin()
            return await self._ask(draft, cause, parent, course)

        return self.streams.begin(capability, arguments, ask, on_end=course.end, **options)

    async def ask(
        self, draft: CallDraft, *, cause: Envelope | None = None, parent: TraceContext | None = None
    ) -> Result:
        """Calls and returns the result, also a failed one; `cause` is the message or call that is being handled.

        It ends by the deadline of the draft, of the card, or of the cause, whichever comes first. Cancelled, it tells
        the callee. Raises ValueError for a draft that could never be sent.
        """
        draft.check()
        began, code = time.perf_counter(), "tool.cancelled"
        try:
            result = await self._ask(draft, cause, parent)
            code = "" if result.error is None else result.error.code
            return result
        finally:
            self._telemetry.metrics.calls.asked(draft.capability, code, time.perf_counter() - began)

    async def _ask(
        self, draft: CallDraft, cause: Envelope | None, parent: TraceContext | None, course: Course | None = None
    ) -> Result:
        call_id = draft.id or new_message_id()
        started = time.monotonic()
        try:
            offers = await self._begin(draft, call_id, cause)
        except BusError as problem:
            return Result.of_error(problem.info, tool_call_id=call_id)
        deadline = started + self._timeout_s(draft, offers, cause)
        trace_id = cause.trace_id if cause is not None else new_trace_id()
        arguments = draft.to_json()
        if draft.validate and (breach := self._precheck.breach(offers[0], arguments)) is not None:
            self._witness.unsent(draft, call_id, breach, agent=offers[0].agent, cause=cause, trace_id=trace_id)
            return Result.of_error(breach, tool_call_id=call_id)
        asked = Asked(
            call_id,
            draft.capability,
            arguments,
            draft.version,
            draft.repairs_left,
            draft.max_result_bytes,
            draft.observe,
        )
        span = self._telemetry.start(
            lambda: f"call {draft.capability}",
            SpanKind.CLIENT,
            trace_id=trace_id,
            parent=parent,
            sampling_key=draft.workflow(cause) or trace_id,
            attributes=lambda: call_attributes(self._name, asked, None, workflow_id=draft.workflow(cause)),
        )
        if course is not None:
            course.span = span
        try:
            offers = self._in_turn(offers)
            result = await self._attempts.attempt(draft, asked, offers[0], deadline, trace_id, span, cause)
            if result.error is not None:
                result = await self._attempts.persist(result, draft, asked, offers, deadline, trace_id, span, cause)
            if result.error is not None and course is None:
                span.fail(result.error.code, result.error.message)
            if cause is not None and RECORDED in cause.extensions:
                await keep(self._connection, self._name, cause, asked, result)
            return result
        finally:
            if course is None:
                span.end()

    async def ask_many(
        self,
        drafts: Sequence[CallDraft],
        *,
        cause: Envelope | None = None,
        parent: TraceContext | None = None,
        in_flight: int = IN_FLIGHT,
    ) -> dict[str, Result]:
        """Makes several calls at once, `in_flight` at a time; the results by the id of the draft, or its index as text.

        Every draft has a result, also when it failed. Raises ValueError for two drafts with one id.
        """
        ids = [draft.id or str(index) for index, draft in enumerate(drafts)]
        if len(set(ids)) < len(ids):
            raise ValueError("two calls have the same id; results could not be told apart")
        for draft in drafts:
            draft.check()
        results: dict[str, Result] = {}
        waiting = iter(zip(ids, drafts, strict=True))

        async def work() -> None:
            for id, draft in waiting:
                results[id] = await self.ask(draft, cause=cause, parent=parent)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(in_flight, len(ids))):
                group.create_task(work())
        return {id: results[id] for id in ids}

    async def submit(
        self,
        capability: str,
        arguments: Any = None,
        *,
        cause: Envelope | None = None,
        parent: TraceContext | None = None,
        **options: Any,
    ) -> Task:
        """Submits a task and returns it once it is stored. Options are the fields of `CallDraft`.

        An agent that is named need not be there: the task waits for it. Raises RegistryError when nobody offers the
        capability, with `validate` Rejected for arguments that its card does not take, and as `Submission.submit`.
        """
        draft = CallDraft(capability, arguments, **options)
        draft.check()
        agent = draft.agent
        try:
            await self._pay(cause)
            offers = await self._lookup.offers(draft, cause)
            self._turn += 1
            offer = offers[self._turn % len(offers)]
            agent = offer.agent
            if draft.validate and (breach := self._precheck.breach(offer, draft.to_json())) is not None:
                raise raised(breach)
        except BusError as problem:
            if agent is None or problem.info.code != "registry.agent_not_found":
                self._lookup.refused(draft, draft.id or new_message_id(), problem, cause)
                raise
        record = await self.submission.submit(Wish(draft, agent, self._name, cause, parent))
        return Task(self._connection, self._name, record.id)

    async def notify(
        self, draft: CallDraft, *, cause: Envelope | None = None, parent: TraceContext | None = None
    ) -> str:
        """Calls without waiting for a result, and nobody tells whether it arrived; returns the call's id.

        Raises RegistryError when nobody offers the capability, and BrokerError.
        """
        draft.check()
        call_id = draft.id or new_message_id()
        offers = await self._begin(draft, call_id, cause)
        self._turn += 1
        offer = offers[self._turn % len(offers)]
        trace_id = cause.trace_id if cause is not None else new_trace_id()
        deadline = time.monotonic() + self._timeout_s(draft, offers, cause)
        asked = Asked(call_id, draft.capability, draft.to_json(), draft.version)
        subject, data = await self._attempts.request(draft, asked, offer, deadline, trace_id, cause)
        headers = header_block(parent.to_headers()) if parent is not None else b""
        await self._connection.send(publish_command(subject, "", headers, data))
        return asked.tool_call_id

    async def close(self) -> None:
        """Ends what watches over calls; a second call does nothing."""
        await self.streams.close()
        await self._watch.close()
        await self.directory.close()

    # -- one call --

    async def _begin(self, draft: CallDraft, call_id: str, cause: Envelope | None) -> list[Offer]:
        """Who may be asked, once the call is paid for. Raises RegistryError, Rejected and BrokerError."""
        try:
            offers = await self._lookup.offers(draft, cause)
            await self._pay(cause)
        except BusError as problem:
            self._lookup.refused(draft, call_id, problem, cause)
            raise
        return offers

    async def _pay(self, cause: Envelope | None) -> None:
        if cause is not None and "budget" in cause.extensions:
            await self.accounts.spend(cause, calls=1)

    def _in_turn(self, offers: list[Offer]) -> list[Offer]:
        """Who is asked first, and who next."""
        if len(offers) == 1:
            return offers
        self._turn += 1
        ordered = sorted(offers, key=lambda offer: offer.agent)
        return ordered[self._turn % len(ordered) :] + ordered[: self._turn % len(ordered)]

    def _timeout_s(self, draft: CallDraft, offers: Iterable[Offer], cause: Envelope | None) -> float:
        timeout_s = draft.timeout_s
        if timeout_s is None:
            timeout_s = max(self._connection.settings.call_timeout_s, *(offer.card.timeout_s for offer in offers))
        inherited_s = budget.time_left_s(cause) if cause is not None else None
        return timeout_s if inherited_s is None else min(timeout_s, inherited_s)
