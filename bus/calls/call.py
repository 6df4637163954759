"""The call as a capability sees it: who asks, until when, and what it may do on the way."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel

from bus.calls.feed import MAX_MESSAGE_CHARS, Feed
from bus.calls.records import Told
from bus.contracts.result import Result
from bus.envelope import Envelope, derive_message_id, new_message_id
from bus.telemetry.spans import Span
from bus.trust import budget
from bus.trust.accounts import Accounts
from bus.trust.confirmation import Question
from bus.trust.confirmations import VALID_S, Confirmations
from bus.trust.labels import joined, labels_of
from bus.workflow.artifacts import Artifacts
from bus.workflow.calling import Calling, Streamed, Submitted

Publish = Callable[..., Awaitable[Envelope]]


class Call:
    """One call of one capability. A capability that wants it names a parameter of this type.

    `model_id` may be set to the model that did the work; it stands in the result's `meta`. `attempt` is above 1 when
    a task runs again, because its replica died or it failed; the `idempotency_key` of a task is its id.
    """

    __slots__ = (
        "_accounts",
        "_agent",
        "_caller",
        "_confirmations",
        "_ends_at",
        "_feed",
        "_labels",
        "_ordinal",
        "_progress",
        "_publish",
        "_span",
        "artifacts",
        "attempt",
        "envelope",
        "idempotency_key",
        "model_id",
        "tool_call_id",
    )

    def __init__(
        self,
        envelope: Envelope,
        *,
        agent: str,
        tool_call_id: str,
        idempotency_key: str | None,
        ends_at: float,
        span: Span,
        caller: Calling,
        publish: Publish,
        artifacts: Artifacts,
        accounts: Accounts,
        confirmations: Confirmations,
        feed: Feed | None = None,
        attempt: int = 1,
    ) -> None:
        self.envelope = envelope
        self.tool_call_id = tool_call_id
        self.idempotency_key = idempotency_key
        self.artifacts = artifacts
        self.attempt = attempt
        self.model_id: str | None = None
        self._agent = agent
        self._ends_at = ends_at
        self._span = span
        self._caller = caller
        self._publish = publish
        self._accounts = accounts
        self._confirmations = confirmations
        # Beside those of the envelope.
        self._labels: dict[str, None] = {}
        self._feed = feed
        self._ordinal = 0
        self._progress = -1.0

    @property
    def sender(self) -> str:
        """The agent or client that calls."""
        return self.envelope.sender

    @property
    def trace_id(self) -> str:
        """The trace that the call belongs to."""
        return self.envelope.trace_id

    @property
    def workflow_id(self) -> str | None:
        """The workflow that the call belongs to."""
        return self.envelope.workflow_id

    @property
    def session_id(self) -> str | None:
        """The session that the call belongs to."""
        return self.envelope.session_id

    @property
    def traceparent(self) -> str | None:
        """The span of this call, as the header of this name, for what it asks elsewhere; None without a trace."""
        return self._span.context.traceparent if self._span.context is not None else None

    @property
    def task_id(self) -> str | None:
        """The task that this call is, or is a part of."""
        return self.envelope.extensions.get("task_id")

    @property
    def remaining_s(self) -> float:
        """Seconds until the call is ended as `tool.timeout`; 0 when that is due."""
        return max(0.0, self._ends_at - time.monotonic())

    async def call(
        self, capability: str, arguments: BaseModel | dict[str, Any], *, timeout_s: float | None = None, **options: Any
    ) -> Result:
        """Calls onwards, within what is left of this call's time; arguments and errors as `Bus.call`.

        A keyed call passes a key of its own on, so that a second run of it asks for the same work.
        """
        self._ordinal += 1
        if self.idempotency_key is not None:
            options.setdefault("derived_key", self._derived(f"call:{self._ordinal}:{capability}"))
        left = self.remaining_s
        timeout_s = left if timeout_s is None else min(left, timeout_s)
        cause, parent, feed = self._cause, self._span.context, self._feed
        if feed is not None:
            options.setdefault("id", new_message_id())

        def calling() -> Awaitable[Result]:
            return self._caller.call(capability, arguments, timeout_s=timeout_s, cause=cause, parent=parent, **options)

        result = await (calling() if feed is None else feed.tool_call(capability, options["id"], calling))
        self.label(*result.labels)
        return result

    def stream(
        self, capability: str, arguments: BaseModel | dict[str, Any], *, timeout_s: float | None = None, **options: Any
    ) -> Streamed:
        """Streams onwards, within what is left of this call's time; as `Bus.stream`."""
        left = self.remaining_s
        return self._caller.stream(
            capability,
            arguments,
            timeout_s=left if timeout_s is None else min(left, timeout_s),
            cause=self._cause,
            parent=self._span.context,
            heard=self.label,
            relay=None if self._feed is None else self._feed.relay,
            **options,
        )

    async def confirm(self, question: str, *, arguments: Any = None, expires_s: float = VALID_S) -> str:
        """Returns, with the name of who approved, once a person has approved exactly these arguments for this work.

        Until then it raises `auth.confirmation_required`. Let it pass: the caller hears it, a message in whose course
        the call was made is parked until there is an answer (`bus workflow approve ID`), and then asks again under the
        key that it has. A caller of another kind asks again itself, with an `idempotency_key`. One run uses an
        approval up. Raises `auth.permission_denied` when it was denied, or after `expires_s`.
        """
        asked = Question(
            self._agent,
            ("call", self.sender, self.idempotency_key or self.tool_call_id),
            question,
            arguments.model_dump(mode="json", by_alias=True) if isinstance(arguments, BaseModel) else arguments,
            workflow_id=self.workflow_id,
            on_behalf_of=self.sender,
            labels=tuple(self.labels),
        )
        confirmed = await self._confirmations.require(asked, attempt=None, valid_s=expires_s)
        return confirmed.answered_by or ""

    async def spend(self, *, tokens: int) -> None:
        """Tells that the work has used model tokens; they count in the budget of its chain.

        Raises Rejected `protocol.budget_exhausted` once they are used up, and BrokerError.
        """
        await self._accounts.spend(self.envelope, tokens=tokens)

    def label(self, *labels: str) -> None:
        """Says where the result, and what is sent from now on, comes from, such as `external`."""
        self._labels |= dict.fromkeys(labels)

    @property
    def labels(self) -> list[str]:
        """Where the call and what was read for it come from."""
        return labels_of(self._cause)

    @property
    def _cause(self) -> Envelope:
        return joined(self.envelope, self._labels) if self._labels else self.envelope

    async def progress(self, fraction: float, message: str = "") -> None:
        """Tells callers that want to know how much is done, from 0 to 1, more each time; others cost nothing.

        It says nothing about the deadline. Raises ValueError for a fraction that does not grow.
        """
        if not self._progress < fraction <= 1 or fraction < 0:
            raise ValueError(
                f"progress is a number from 0 to 1 above the one before; {fraction} after {self._progress}"
            )
        self._progress = fraction
        if self._feed is not None:
            await self._feed.tell(Told.STATUS, {"progress": fraction, "message": message[:MAX_MESSAGE_CHARS]})

    async def submit(
        self, capability: str, arguments: BaseModel | dict[str, Any], *, key: str | None = None, **options: Any
    ) -> Submitted:
        """Submits a task in the course of this call; arguments, options and errors as `Bus.submit`.

        Of a task or a keyed call it has a derived id (from `key`, where the order may differ between two runs), so that
        a second run of it submits the same one. Cancelling a task cancels what was submitted in its course. It may
        outlive this call, not the deadline of the task that this call is a part of.
        """
        self._ordinal += 1
        if self.idempotency_key is not None:
            part = f"submit:{key}" if key else f"submit:{self._ordinal}:{capability}"
            options.setdefault("derived_key", self._derived(part))
        return await self._caller.submit(capability, arguments, cause=self._cause, parent=self._span.context, **options)

    async def send(self, to: str, type: str, payload: BaseModel | Any, *, phase: str | None = None) -> Envelope:
        """Sends a message that this call caused; returns its envelope once the broker has stored it.

        Of a keyed call the message has a derived id, so that a second run of it sends the same one.
        """
        self._ordinal += 1
        keyed = self.idempotency_key is not None
        if "budget" in self.envelope.extensions:
            await self._accounts.spend(self.envelope, messages=1)
        return await self._publish(
            Envelope(
                sender=self._agent,
                to=to,
                type=type,
                message_id=self._derived(f"send:{self._ordinal}:{to}:{type}") if keyed else None,
                trace_id=self.trace_id,
                workflow_id=self.workflow_id,
                session_id=self.session_id,
                phase=phase or self.envelope.phase,
                extensions=budget.inherit(self._cause, self._agent),
                payload=payload.model_dump(mode="json", by_alias=True) if isinstance(payload, BaseModel) else payload,
            ),
            parent=self._span.context,
        )

    def _derived(self, part: str) -> str:
        return derive_message_id(self.sender, self.idempotency_key or "", self._agent, part)
