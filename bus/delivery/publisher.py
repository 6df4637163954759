"""The publisher: one envelope onto its subject, confirmed by the broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from bus.broker.connection import Connection
from bus.broker.parser import read_header_block
from bus.broker.store import store_block
from bus.broker.streams import has_schedules
from bus.broker.subjects import BROADCAST, key_lane
from bus.broker.wire import header_block, plain_block
from bus.delivery.attributes import Attributes, KindAttributes, id_attributes, kind_attributes
from bus.delivery.middleware import PublishMiddleware, wrap
from bus.delivery.negotiation import Negotiation
from bus.delivery.onward import onward
from bus.envelope import Envelope, dedupe_header
from bus.envelope.timestamps import instant
from bus.errors import BusError, error
from bus.telemetry.context import TraceContext
from bus.telemetry.logs import is_telling, tell_sent
from bus.telemetry.spans import Span, SpanKind, Telemetry
from bus.workflow.artifacts import Artifacts
from bus.workflow.references import refer

IN_FLIGHT = 64


class Publisher:
    """Sends envelopes over one connection. Safe to use from many tasks."""

    __slots__ = (
        "_artifacts",
        "_connection",
        "_inline_limit",
        "_kinds",
        "_middleware",
        "_negotiation",
        "_sends",
        "_telemetry",
        "_timeout_s",
    )

    def __init__(
        self,
        connection: Connection,
        telemetry: Telemetry,
        *,
        middleware: Sequence[PublishMiddleware] = (),
        negotiation: Negotiation | None = None,
    ) -> None:
        self._connection = connection
        self._telemetry = telemetry
        self._sends = telemetry.metrics.sends
        self._kinds = KindAttributes()
        self._middleware = middleware
        self._negotiation = negotiation
        self._artifacts = Artifacts(connection)
        self._inline_limit = connection.settings.inline_limit
        self._timeout_s = connection.settings.publish_timeout_s

    @property
    def connection(self) -> Connection:
        """The connection that it sends over."""
        return self._connection

    def publish(
        self,
        envelope: Envelope,
        *,
        parent: TraceContext | None = None,
        ttl_s: int | None = None,
        timeout_s: float | None = None,
    ) -> Coroutine[Any, Any, Envelope]:
        """Publishes through the middleware, waits until the broker has stored it, and returns what was stored.

        To one agent it goes on the work subject of its priority or partition key, to `*` on the event subject;
        with a `deliver_at` to come, the server keeps it until then. A payload over the setting `inline_limit` is
        stored first and travels by reference. The broker counts the same `from` and `message_id` once within two
        minutes. `ttl_s`: forgotten after that many seconds if nobody took it. Raises `broker.unavailable` after
        `timeout_s` (default: the setting `publish_timeout_s`) or, for `deliver_at`, on a server older than 2.12;
        `broker.full`, `protocol.too_large`, `protocol.malformed` for extensions that exclude each other, and
        `registry.no_common_version` when no replica of the receiver accepts the contract that the message names.
        Cancelled, it may or may not be stored.
        """
        if parent is None and not envelope.extensions and not self._middleware:
            return self._store(envelope, None, ttl_s, timeout_s)
        if self._negotiation is not None and envelope.schema is not None:
            return self._publish_agreed(self._negotiation, envelope, parent, ttl_s, timeout_s)
        return self._publish_as_it_is(envelope, parent, ttl_s, timeout_s)

    async def _publish_agreed(
        self,
        negotiation: Negotiation,
        envelope: Envelope,
        parent: TraceContext | None,
        ttl_s: int | None,
        timeout_s: float | None,
    ) -> Envelope:
        agreed = await negotiation.agree(envelope)
        return await self._publish_as_it_is(agreed, parent, ttl_s, timeout_s)

    def _publish_as_it_is(
        self, envelope: Envelope, parent: TraceContext | None, ttl_s: int | None, timeout_s: float | None
    ) -> Coroutine[Any, Any, Envelope]:
        if parent is not None:
            envelope, parent = onward(self._telemetry, envelope, parent)
        if self._middleware:
            return self._publish_inside(envelope, parent, ttl_s, timeout_s)
        return self._store(envelope, parent, ttl_s, timeout_s)

    async def _publish_inside(
        self, envelope: Envelope, parent: TraceContext | None, ttl_s: int | None, timeout_s: float | None
    ) -> Envelope:
        sent = envelope

        async def innermost(changed: Envelope) -> None:
            nonlocal sent
            sent = await self._store(changed, parent, ttl_s, timeout_s)

        await wrap(innermost, self._middleware)(envelope)
        return sent

    async def _store(
        self, envelope: Envelope, parent: TraceContext | None, ttl_s: int | None, timeout_s: float | None
    ) -> Envelope:
        subject, schedule = self._address(envelope)
        span = self._span(envelope, subject, parent)
        message_id = dedupe_header(envelope.sender, envelope.message_id)
        lines = span.header_lines if schedule is None and ttl_s is None else ""
        headers = plain_block(message_id, lines) if lines else _block(message_id, span, schedule, ttl_s)
        if timeout_s is None:
            timeout_s = self._timeout_s
        code, began = "", time.perf_counter()
        try:
            data = envelope.encode()
            if len(data) > self._inline_limit:
                referring = await refer(envelope, self._artifacts, over_bytes=self._inline_limit, timeout_s=timeout_s)
                data = data if referring is envelope else referring.encode()
            if span.is_recording:
                span.set({"messaging.message.body.size": len(data)})
            stored = await store_block(self._connection, subject, data, headers, timeout_s=timeout_s)
            if is_telling():
                tell_sent(envelope, read_header_block(headers))
            if stored.duplicate:
                span.set({"bus.duplicate": True})
            return envelope
        except BusError as problem:
            code = problem.info.code
            span.fail(code, problem.info.message)
            raise
        except asyncio.CancelledError:
            code = "tool.cancelled"
            raise
        finally:
            if span.is_recording:
                span.end()
            self._sends.ended(envelope.to, envelope.type, envelope.phase, code, time.perf_counter() - began)

    def _span(self, envelope: Envelope, subject: str, parent: TraceContext | None) -> Span:
        trace_id = envelope.trace_id
        key = envelope.workflow_id or trace_id
        unrecorded = self._telemetry.unrecorded(trace_id=trace_id, parent=parent, sampling_key=key)
        if unrecorded is not None:
            return unrecorded
        return self._telemetry.recorded(
            f"send {envelope.to}.{envelope.type}",
            SpanKind.PRODUCER,
            trace_id=trace_id,
            parent=parent,
            attributes=id_attributes(envelope),
            common=self._kinds.of(
                envelope, subject, lambda: self._common(envelope, subject), epoch=self._connection.epoch
            ),
        )

    async def publish_many(self, envelopes: Sequence[Envelope], *, parent: TraceContext | None = None) -> None:
        """Publishes all, up to 64 at once, and waits until the broker has stored each.

        Those to one agent with one partition key are sent one after another, and not past one that failed. When
        some were not stored, the others are; it raises one error with the code of the first, whose `details.failed`
        lists `{index, message_id, error}`. Cancelled, any of them may or may not be stored.
        """
        failed: dict[int, BusError] = {}
        chains = iter(_chains(envelopes))

        async def work() -> None:
            for chain in chains:
                for place, index in enumerate(chain):
                    try:
                        await self.publish(envelopes[index], parent=parent)
                    except BusError as problem:
                        failed[index] = problem
                        failed.update({later: _held_up(index) for later in chain[place + 1 :]})
                        break

        async with asyncio.TaskGroup() as group:
            for _ in range(min(IN_FLIGHT, len(envelopes))):
                group.create_task(work())
        if failed:
            raise _not_stored(envelopes, failed)

    def _common(self, envelope: Envelope, subject: str) -> Attributes:
        attributes = kind_attributes("send", envelope, agent=envelope.sender)
        attributes["messaging.destination.name"] = subject
        server = urlsplit(self._connection.url)
        attributes["server.address"] = server.hostname or ""
        attributes["server.port"] = server.port or 0
        return attributes

    def _address(self, envelope: Envelope) -> tuple[str, dict[str, str] | None]:
        """The subject, and for a later delivery the headers that make it one."""
        subjects = self._connection.subjects
        extensions = envelope.extensions
        sender, to, type = envelope.address
        if not extensions and to != BROADCAST:
            return subjects.work(to, "normal", sender, type), None
        if "deliver_at" in extensions and instant(extensions["deliver_at"]) > datetime.now(UTC):
            return self._schedule(envelope)
        if to == BROADCAST:
            return subjects.event(sender, envelope.workflow_id, type), None
        lane = "normal"
        if "partition_key" in extensions:
            lane = key_lane(extensions["partition_key"])
        elif "priority" in extensions:
            lane = extensions["priority"]
        return subjects.work(to, lane, sender, type), None

    def _schedule(self, envelope: Envelope) -> tuple[str, dict[str, str]]:
        version = self._connection.server_version
        if not has_schedules(version):
            raise error(
                "broker.unavailable",
                f"deliver_at needs nats-server 2.12 or newer, this one is {version}; upgrade it, or send without",
                retryable=False,
                server_version=version,
            )
        if envelope.to == BROADCAST or "partition_key" in envelope.extensions:
            raise error(
                "protocol.malformed",
                "deliver_at is for one message to one agent; it excludes partition_key and to='*'",
                path="extensions.deliver_at",
            )
        subjects = self._connection.subjects
        moment = instant(envelope.extensions["deliver_at"]).isoformat().replace("+00:00", "Z")
        return subjects.later(envelope.to, envelope.sender, envelope.type, envelope.message_id), {
            "Nats-Schedule": f"@at {moment}",
            "Nats-Schedule-Target": subjects.due(envelope.to, envelope.sender, envelope.type),
        }


def _block(message_id: str, span: Span, schedule: Mapping[str, str] | None, ttl_s: int | None) -> bytes:
    headers = {"Nats-Msg-Id": message_id, **span.headers()}
    if ttl_s is not None:
        headers["Nats-TTL"] = str(ttl_s)
    if schedule is not None:
        headers |= schedule
    return header_block(headers)


def _chains(envelopes: Sequence[Envelope]) -> list[list[int]]:
    """Indices that must be sent in order stand in one list."""
    chains: dict[Any, list[int]] = {}
    for index, envelope in enumerate(envelopes):
        key = envelope.extensions.get("partition_key")
        chains.setdefault(index if key is None else (envelope.to, key), []).append(index)
    return list(chains.values())


def _held_up(index: int) -> BusError:
    return error(
        "broker.unavailable", f"not sent, because message {index} with the same partition key before it was not stored"
    )


def _not_stored(envelopes: Sequence[Envelope], failed: dict[int, BusError]) -> BusError:
    first = failed[min(failed)]
    return error(
        first.info.code,
        f"{len(failed)} of {len(envelopes)} messages were not stored, the first is number {min(failed)}: "
        f"{first.info.message}; send those again with their message ids",
        retryable=all(problem.info.retryable for problem in failed.values()),
        failed=[
            {"index": index, "message_id": envelopes[index].message_id, "error": problem.info.to_wire()}
            for index, problem in sorted(failed.items())
        ],
    )
