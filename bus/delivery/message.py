"""The message as a handler sees it, and what it sends while it handles one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from pydantic import BaseModel

from bus.contracts.result import Result
from bus.delivery.drafts import Draft, written
from bus.delivery.publisher import Publisher
from bus.envelope import Envelope, derive_message_id
from bus.telemetry.context import TraceContext
from bus.telemetry.spans import Span
from bus.trust import budget
from bus.trust.accounts import Accounts
from bus.trust.confirmation import Question
from bus.trust.confirmations import VALID_S, Confirmations
from bus.trust.labels import joined, labels_of
from bus.workflow.artifacts import Artifacts
from bus.workflow.branches import in_this_branch
from bus.workflow.calling import Calling, Streamed, Submitted
from bus.workflow.context import FAMILY, Context
from bus.workflow.handle import WorkflowHandle, Workflows
from bus.workflow.slots import TIMEOUT_S, TTL_S, Slot
from bus.workflow.state import WorkflowState


class Message:
    """One delivery of one envelope to one handler.

    `content` is the payload as the handler gets it, `attempt` counts the deliveries from 1.
    What it sends has ids derived from this message, so a handler that runs again after a crash sends the same
    ids and nothing downstream doubles.
    """

    __slots__ = (
        "_accounts",
        "_agent",
        "_artifacts",
        "_began",
        "_calls",
        "_labels",
        "_ordinal",
        "_phase",
        "_publisher",
        "_span",
        "_workflow",
        "_workflows",
        "attempt",
        "confirmations",
        "content",
        "envelope",
        "set_aside",
    )

    def __init__(
        self,
        envelope: Envelope,
        *,
        agent: str,
        attempt: int,
        content: Any,
        phase: str | None,
        span: Span,
        publisher: Publisher,
        artifacts: Artifacts,
        workflows: Workflows,
        calls: Calling,
        accounts: Accounts,
    ) -> None:
        self.envelope = envelope
        self.attempt = attempt
        self.content = content
        self._artifacts = artifacts
        self.set_aside: str | None = None
        self.confirmations: Confirmations | None = None
        self._workflows = workflows
        self._workflow: WorkflowHandle | None = None
        self._agent = agent
        self._phase = phase
        self._span = span
        self._publisher = publisher
        self._calls = calls
        self._accounts = accounts
        # Beside those of the envelope.
        self._labels: dict[str, None] | None = None
        self._ordinal = 0
        self._began = time.perf_counter()

    @property
    def state(self) -> WorkflowState:
        """The documents that all agents of this workflow share."""
        return self.workflow.state

    @property
    def artifacts(self) -> Artifacts:
        """Content that travels by reference."""
        if self.envelope.workflow_id is None:
            return self._artifacts
        return self._artifacts.under(self.workflow.fence)

    def slot(
        self, phase: str, *, key: str = "", limit: int | None = None, ttl_s: float = TTL_S, timeout_s: float = TIMEOUT_S
    ) -> AbstractAsyncContextManager[Slot]:
        """Works in a phase while holding one of its slots; see `WorkflowHandle.slot`."""
        return self.workflow.slot(phase, key=key, limit=limit, ttl_s=ttl_s, timeout_s=timeout_s)

    async def _check(self) -> None:
        """Whether anything may still be done in the course of this message."""
        self._workflows.controls.check(self.envelope)
        if self._workflow is not None:
            await self._workflow.fence.confirm()

    @property
    def workflow(self) -> WorkflowHandle:
        """The workflow that it belongs to: its record, phases and documents."""
        if self._workflow is None:
            self._workflow = self._workflows.of(self.envelope)
        return self._workflow

    @property
    def message_id(self) -> str:
        """Id of the envelope."""
        return self.envelope.message_id

    @property
    def sender(self) -> str:
        """Agent that sent it."""
        return self.envelope.sender

    @property
    def type(self) -> str:
        """Message type."""
        return self.envelope.type

    @property
    def schema_version(self) -> str | None:
        """The contract that its sender named, such as `draft_request@1.0`; `content` may be newer, upcast from it."""
        return self.envelope.schema

    @property
    def workflow_id(self) -> str | None:
        """Workflow that it belongs to."""
        return self.envelope.workflow_id

    @property
    def session_id(self) -> str | None:
        """Session that it belongs to."""
        return self.envelope.session_id

    @property
    def phase(self) -> str | None:
        """Phase of the workflow: the envelope's, else the handler's."""
        return self._phase

    @property
    def payload(self) -> Any:
        """The JSON value as it came."""
        return self.envelope.payload

    @property
    def traceparent(self) -> str | None:
        """The span that handles this message, as the header of this name; None when there is no trace.

        Keep it beside what you keep of the message: `link` and `Bus.workflow(after=...)` take it later.
        """
        return self._span.context.traceparent if self._span.context is not None else None

    def link(self, traceparents: Iterable[str | None]) -> None:
        """Says that this handling takes up other messages too, as a reviewer does who has waited for all drafts.

        Each `traceparent` that another message had becomes a link of this one's span. None, damaged ones, ones that
        are there already and this message's own are passed over.
        """
        if self._span.is_recording:
            found = (TraceContext.from_headers({"traceparent": one}) for one in traceparents if one is not None)
            self._span.link(context for context in found if context is not None)

    async def send(
        self,
        to: str,
        type: str,
        payload: BaseModel | dict[str, Any] | Any,
        *,
        phase: str | None = None,
        role: str | None = None,
        status: str | None = None,
        key: str | None = None,
        message_id: str | None = None,
        extensions: Mapping[str, Any] | None = None,
        delay_s: float | None = None,
    ) -> Envelope:
        """Sends a message that this one caused; returns its envelope once the broker has stored it.

        It stays in the workflow, session and trace; `to="*"` broadcasts. Its id is derived from this message's
        id, the agent, the receiver, the type and the number of the send; give a `key` where the order of sends may
        differ between two runs, or a whole `message_id` where several messages may cause the same one. `delay_s`:
        delivered that many seconds later, as with the extension `deliver_at`. Raises as
        `Publisher.publish`, and Rejected `protocol.malformed` for a name or type that the envelope refuses.
        """
        await self._check()
        draft = self._compose(Draft(to, type, payload, phase, role, status, key, message_id, extensions, delay_s))
        if "budget" in self.envelope.extensions:
            await self._accounts.spend(self.envelope, messages=1)
        return await self._publisher.publish(draft, parent=self._span.context)

    async def call(
        self, capability: str, arguments: BaseModel | dict[str, Any], *, key: str | None = None, **options: Any
    ) -> Result:
        """Calls a capability in the course of handling this message; arguments, options and errors as `Bus.call`.

        It inherits the deadline, the workflow and the trace. Unless the capability is idempotent, the call has an
        idempotency key derived from this message (and `key`, where the order of calls may differ between two runs),
        so a handler that runs again gets the stored result and the work is done once.
        """
        await self._check()
        self._ordinal += 1
        part = f"call:{key}" if key else f"call:{self._ordinal}:{capability}"
        options.setdefault("derived_key", derive_message_id(self.sender, self.message_id, self._agent, part))
        result = await self._calls.call(capability, arguments, cause=self._cause, parent=self._span.context, **options)
        self.label(*result.labels)
        return result

    @property
    def _cause(self) -> Envelope:
        # What is called and sent also comes from what was read for it.
        return self.envelope if self._labels is None else joined(self.envelope, self._labels)

    def stream(self, capability: str, arguments: BaseModel | dict[str, Any], **options: Any) -> Streamed:
        """Streams a capability in the course of handling this message; as `Bus.stream`.

        It inherits the deadline, the workflow and the trace; labels of its chunks are those of what is sent after them.
        A handler that runs again begins a new stream.
        """
        self._workflows.controls.check(self.envelope)
        return self._calls.stream(
            capability, arguments, cause=self._cause, parent=self._span.context, heard=self.label, **options
        )

    async def submit(
        self, capability: str, arguments: BaseModel | dict[str, Any], *, key: str | None = None, **options: Any
    ) -> Submitted:
        """Submits a task in the course of handling this message; arguments, options and errors as `Bus.submit`.

        It inherits the deadline, the workflow and the trace. Its id is derived from this message (and `key`, where the
        order may differ between two runs), so a handler that runs again submits the same task.
        """
        self._workflows.controls.check(self.envelope)
        self._ordinal += 1
        part = f"submit:{key}" if key else f"submit:{self._ordinal}:{capability}"
        options.setdefault("derived_key", derive_message_id(self.sender, self.message_id, self._agent, part))
        return await self._calls.submit(capability, arguments, cause=self._cause, parent=self._span.context, **options)

    async def send_many(self, drafts: Iterable[Draft]) -> list[Envelope]:
        """Sends several messages at once; ids as if each were sent by `send`. Raises as `Publisher.publish_many`."""
        await self._check()
        envelopes = [self._compose(draft) for draft in drafts]
        if "budget" in self.envelope.extensions:
            await self._accounts.spend(self.envelope, messages=len(envelopes))
        await self._publisher.publish_many(envelopes, parent=self._span.context)
        return envelopes

    async def confirm(self, question: str, *, arguments: Any = None, expires_s: float = VALID_S) -> str:
        """Returns, with the name of who approved, once a person has approved exactly these arguments for this message.

        Until then it raises `auth.confirmation_required`: let it pass, and the message is parked, comes again when a
        person has answered (`bus workflow approve ID`), and runs from its beginning. An approval is for this message
        alone and used up by it. Raises `auth.permission_denied` when it was denied, or after `expires_s`.
        """
        assert self.confirmations is not None
        asked = Question(
            self._agent,
            ("message", self.sender, self.message_id),
            question,
            as_json(arguments),
            workflow_id=self.workflow_id,
            message_id=self.message_id,
            on_behalf_of=self.sender,
            labels=tuple(self.labels),
        )
        confirmed = await self.confirmations.require(asked, attempt=self.attempt, valid_s=expires_s)
        return confirmed.answered_by or ""

    async def spend(self, *, tokens: int) -> None:
        """Tells that the work on this message has used model tokens; they count in the budget of its chain.

        Raises Rejected `protocol.budget_exhausted` once they are used up, and BrokerError.
        """
        await self._accounts.spend(self.envelope, tokens=tokens)

    def label(self, *labels: str) -> None:
        """Says where what is sent from now on comes from, such as `external`: it joins what the message came with.

        Reading the `context`, and results of capabilities that say so, do it by themselves.
        """
        if labels:
            self._labels = {**(self._labels or {}), **dict.fromkeys(labels)}

    @property
    def labels(self) -> list[str]:
        """Where this message and what was read for it come from."""
        return labels_of(self._cause)

    @property
    def context(self) -> Context:
        """What the agents of this workflow share beside messages: instructions, memory, artifacts."""
        return Context(
            self.workflow.documents(FAMILY),
            agent=self._agent,
            limit_bytes=self._workflows.memory_limit,
            next_key=self._key,
            labels=lambda: self.labels,
            heard=self.label,
        )

    def _key(self, part: str) -> str:
        self._ordinal += 1
        return derive_message_id(self.sender, self.message_id, self._agent, f"{part}:{self._ordinal}")

    def _compose(self, draft: Draft) -> Envelope:
        self._ordinal += 1
        part = f"key:{draft.key}" if draft.key else f"send:{self._ordinal}:{draft.to}:{draft.type}"
        return Envelope(
            sender=self._agent,
            to=draft.to,
            type=draft.type,
            message_id=in_this_branch(self.envelope, draft.message_id)
            or derive_message_id(self.sender, self.message_id, self._agent, part),
            trace_id=self.envelope.trace_id,
            session_id=self.envelope.session_id,
            workflow_id=self.envelope.workflow_id,
            role=draft.role,
            phase=draft.phase or self._phase,
            status=draft.status,
            extensions=budget.inherit(
                self._cause, self._agent, written(draft.extensions, draft.delay_s, draft.type, draft.payload)
            ),
            payload=as_json(draft.payload),
        )

    async def reply(self, type: str, payload: BaseModel | dict[str, Any] | Any, **options: Any) -> Envelope:
        """Sends to the sender of this message, or to its `reply_to`; options as `send`.

        The extension `exec_ms` says how long the handler had worked by then.
        """
        exec_ms = round((time.perf_counter() - self._began) * 1000, 3)
        options["extensions"] = {"exec_ms": exec_ms, **(options.get("extensions") or {})}
        return await self.send(self.envelope.extensions.get("reply_to", self.sender), type, payload, **options)


def as_json(payload: BaseModel | Any) -> Any:
    """A payload as the JSON value that travels."""
    return payload.model_dump(mode="json", by_alias=True) if isinstance(payload, BaseModel) else payload
