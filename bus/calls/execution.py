"""The execution of a call that has been read: capability, checks, gate 1, idempotency key, function, gate 2."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from bus.broker.connection import Connection
from bus.broker.wire import publish_command
from bus.calls import items
from bus.calls.answers import Answers
from bus.calls.asked import Asked
from bus.calls.call import Call, Publish
from bus.calls.capability import Capability
from bus.calls.card import TASK_MODE, Card
from bus.calls.cut import cut
from bus.calls.draft import CallDraft
from bus.calls.feed import Feed
from bus.calls.refusals import unknown
from bus.calls.replays import Replays
from bus.calls.taken import Taken
from bus.calls.tasks.submission import MAX_TASK_S, Submission, Wish
from bus.envelope import Envelope
from bus.errors import error
from bus.telemetry.spans import Span
from bus.telemetry.told import instead_of
from bus.trust import budget, labels
from bus.trust.accounts import Accounts
from bus.trust.confirmations import Confirmations
from bus.trust.delegation import askers
from bus.trust.rule_book import RuleBook
from bus.workflow.artifacts import Artifacts
from bus.workflow.calling import Calling
from bus.workflow.references import DATA_REF, restore

Check = Callable[[Asked, Envelope, Card], Awaitable[None]]
"""Whether a call may be made: awaited before its arguments are looked at, raises the BusError that refuses it."""


class Execution:
    """Runs the calls of one agent. What a capability raises passes through."""

    def __init__(
        self,
        connection: Connection,
        *,
        agent: str,
        instance: str,
        capabilities: Mapping[str, Capability],
        checks: Sequence[Check],
        caller: Calling,
        publish: Publish,
        artifacts: Artifacts,
        accounts: Accounts,
        answers: Answers,
        submission: Submission,
        rules: RuleBook | None,
    ) -> None:
        self._connection = connection
        self._agent = agent
        self._instance = instance
        self._answers = answers
        self._capabilities = capabilities
        self._checks = checks
        self._caller = caller
        self._publish = publish
        self._artifacts = artifacts
        self._accounts = accounts
        self._confirmations = Confirmations(connection)
        self._submission = submission
        self._replays = Replays(connection, agent, instance)
        self._rules = rules
        self._max_hops = connection.settings.max_hops

    def capability(self, taken: Taken) -> Capability | None:
        """The capability that a call asks for, as far as it is known."""
        return None if taken.asked is None else self._capabilities.get(taken.asked.tool_name)

    async def run(self, taken: Taken, span: Span, meta: dict[str, Any]) -> Any:
        """What the call came to, as JSON values; `meta` is filled on the way. Raises BusError and what it raises."""
        envelope, asked = taken.envelope, taken.asked
        assert envelope is not None
        assert asked is not None
        meta["tool_name"], meta["trace_id"] = asked.tool_name, envelope.trace_id
        left_s = budget.check(envelope, max_hops=self._max_hops)
        if DATA_REF in envelope.extensions:
            envelope = await restore(envelope, self._artifacts)
            asked = taken.hold(Asked.of(envelope))
        capability = self._capabilities.get(asked.tool_name)
        if self._rules is not None and capability is not None:
            taken.denied = self._denied(capability.card, envelope)
        if capability is None or taken.denied:
            # The same answer to both, made of what the asker may see: none can tell what it is that it may not.
            raise unknown(self._agent, asked.tool_name, self._seen_by(envelope))
        card = capability.card
        meta["tool_version"] = card.version
        if not card.serves(asked.version):
            raise error(
                "registry.no_common_version",
                f"{card.name} has the version {card.version} here, it was called for {asked.version}",
                ours=[card.version, *card.accepts],
                theirs=asked.version,
                started=False,
            )
        timeout_s = card.timeout_s if left_s is None else min(left_s, card.timeout_s)
        taken.ends_at = ends_at = time.monotonic() + timeout_s
        labels.check(envelope, capability=card.name, is_sensitive=card.sensitive)
        for check in self._checks:
            await check(asked, envelope, card)
        admitted, coerced = capability.admit(asked.arguments)
        if coerced:
            meta["coerced"] = coerced
        if slips := capability.gate.unknown_names(asked.arguments):
            meta["warnings"] = slips
        if card.mode == TASK_MODE and taken.task_id is None and not asked.streams:
            return await self._accept(taken, span, meta)
        key = envelope.extensions.get("idempotency_key") if taken.task_id is None else taken.task_id
        feed = None if asked.observe is None else await self._open_feed(taken, envelope, asked, card)
        call = None
        if capability.takes_call:
            call = Call(
                envelope,
                agent=self._agent,
                tool_call_id=asked.tool_call_id,
                idempotency_key=key,
                ends_at=ends_at,
                span=span,
                caller=self._caller,
                publish=self._publish,
                artifacts=self._artifacts,
                accounts=self._accounts,
                confirmations=self._confirmations,
                feed=feed,
                attempt=taken.attempt,
            )
            if feed is not None:
                feed.labels = lambda: call.labels

        if key is None or taken.task_id is not None:
            return await self._perform(capability, admitted, asked, call, feed, meta)
        perform = partial(self._perform, capability, admitted, asked, call, feed, meta)
        return await self._replays.once(key, envelope.sender, asked, ends_at, meta, perform)

    async def _perform(
        self,
        capability: Capability,
        admitted: Any,
        asked: Asked,
        call: Call | None,
        feed: Feed | None,
        meta: dict[str, Any],
    ) -> Any:
        """Runs the function; what it gave, behind gate 2."""
        data = None
        try:
            if feed is not None and feed.streams:
                await items.stream(capability, admitted, call, feed)
            elif capability.card.streaming:
                data = await items.gather(capability, admitted, call)
                meta["chunks"] = len(data)
            else:
                data = capability.release(await capability.run(admitted, call))
        except BaseException as problem:
            if (instead := instead_of(problem)) is not None:
                raise instead from problem
            raise
        if call is not None and call.model_id is not None:
            meta["model_id"] = call.model_id
        if call is not None and call.labels:
            meta["labels"] = call.labels
        if asked.max_result_bytes is None or data is None:
            return data
        data, whole = await cut(data, asked.max_result_bytes, self._artifacts)
        if whole is not None:
            meta["whole"] = whole
        return data

    async def _open_feed(self, taken: Taken, envelope: Envelope, asked: Asked, card: Card) -> Feed:
        """Begins to tell; who asked for a stream is answered at once that it comes."""
        if asked.streams and "idempotency_key" in envelope.extensions:
            raise error(
                "protocol.malformed",
                "a stream is not kept under an idempotency key; resume it by its call id, or call without a stream",
                path="extensions.idempotency_key",
                started=False,
            )
        feed = Feed(
            self._connection,
            self._artifacts,
            envelope,
            asked,
            agent=self._agent,
            instance=self._instance,
            ends_at=taken.ends_at,
        )
        await feed.begin(card.name, card.version)
        if feed.streams and taken.message.reply:
            left_s = max(0.0, taken.ends_at - time.monotonic())
            accepted = self._answers.accepted(taken, asked.tool_call_id, self._instance, left_s)
            await self._connection.send(publish_command(taken.message.reply, "", b"", accepted))
        # From here on its end is told there, and no other answer is given.
        taken.feed = feed
        return feed

    async def _accept(self, taken: Taken, span: Span, meta: dict[str, Any]) -> None:
        """Takes work that is long: it is stored, and the answer is pending."""
        envelope, asked = taken.envelope, taken.asked
        assert envelope is not None
        assert asked is not None
        left_s = budget.time_left_s(envelope)
        draft = CallDraft(
            asked.tool_name,
            asked.arguments,
            timeout_s=None if left_s is None else min(left_s, MAX_TASK_S),
            version=asked.version,
            idempotency_key=envelope.extensions.get("idempotency_key"),
            repairs_left=asked.repairs_left,
            max_result_bytes=asked.max_result_bytes,
        )
        wish = Wish(draft, self._agent, envelope.sender, envelope, span.context)
        record = await self._submission.submit(wish)
        meta |= {"status": "pending", "task_id": record.id}

    def _denied(self, card: Card, envelope: Envelope) -> str:
        """Why the rules do not let this asker call it, in words; empty when they do."""
        assert self._rules is not None
        rules, who = self._rules.rules, askers(envelope)
        if rules.permits(who, card.name, self._agent, sensitive=card.sensitive):
            return ""
        return rules.refusal(who, card.name, self._agent, sensitive=card.sensitive)

    def _seen_by(self, envelope: Envelope) -> list[str]:
        """The capabilities that an asker may call."""
        if self._rules is None:
            return list(self._capabilities)
        rules, who = self._rules.rules, askers(envelope)
        return [
            name
            for name, one in self._capabilities.items()
            if rules.permits(who, name, self._agent, sensitive=one.card.sensitive)
        ]
