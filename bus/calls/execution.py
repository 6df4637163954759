"""The execution of a call that has been read: capability, checks, gate 1, idempotency key, function, gate 2."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from bus.broker.connection import Connection
from bus.broker.wire import publish_command
from bus.calls import items
from bus.calls.answers import Answers
from bus.calls.asked import Asked
from bus.calls.call import Call, Publish
from bus.calls.capability import Capability
from bus.calls.card import Card
from bus.calls.cut import cut
from bus.calls.feed import Feed
from bus.calls.refusals import unknown
from bus.calls.replays import Replays
from bus.calls.taken import Taken
from bus.envelope import Envelope, instant
from bus.errors import error
from bus.telemetry.spans import Span
from bus.telemetry.told import contained
from bus.trust import budget, labels
from bus.trust.accounts import Accounts
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
        self._replays = Replays(connection, agent, instance)
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
        budget.check(envelope, max_hops=self._max_hops)
        if DATA_REF in envelope.extensions:
            envelope = await restore(envelope, self._artifacts)
            taken.asked = asked = Asked.of(envelope)
        capability = self._capabilities.get(asked.tool_name)
        if capability is None:
            raise unknown(self._agent, asked.tool_name, self._capabilities)
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
        taken.ends_at = ends_at = time.monotonic() + _time_left(envelope, card.timeout_s)
        labels.check(envelope, capability=card.name, is_sensitive=card.sensitive)
        for check in self._checks:
            await check(asked, envelope, card)
        admitted, coerced = capability.admit(asked.arguments)
        if coerced:
            meta["coerced"] = coerced
        if slips := capability.gate.unknown_names(asked.arguments):
            meta["warnings"] = slips
        key = envelope.extensions.get("idempotency_key")
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
                feed=feed,
            )
            if feed is not None:
                feed.labels = lambda: call.labels

        async def perform() -> Any:
            data = None
            if feed is not None and feed.streams:
                await contained(lambda one: items.stream(capability, admitted, one, feed), call)
            elif card.streaming:
                data = await contained(lambda one: items.gather(capability, admitted, one), call)
                meta["chunks"] = len(data)
            else:
                data = capability.release(await contained(lambda one: capability.run(admitted, one), call))
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

        if key is None:
            return await perform()
        return await self._replays.once(key, envelope.sender, asked, ends_at, meta, perform)

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


def _time_left(envelope: Envelope, timeout_s: float) -> float:
    deadline = (envelope.extensions.get("budget") or {}).get("deadline_at")
    if deadline is None:
        return timeout_s
    return min(timeout_s, max(0.0, (instant(deadline) - datetime.now(UTC)).total_seconds()))
