"""The publisher: one envelope onto its subject, confirmed by the broker."""

from __future__ import annotations

from collections.abc import Sequence

from bus.broker.connection import Connection
from bus.broker.store import store
from bus.broker.subjects import BROADCAST, LANES
from bus.delivery.attributes import message_attributes
from bus.delivery.middleware import PublishMiddleware, wrap
from bus.envelope import Envelope, dedupe_header
from bus.errors import BusError
from bus.telemetry.context import TraceContext
from bus.telemetry.spans import SpanKind, Telemetry


class Publisher:
    """Sends envelopes over one connection. Safe to use from many tasks."""

    __slots__ = ("_connection", "_middleware", "_telemetry")

    def __init__(
        self, connection: Connection, telemetry: Telemetry, *, middleware: Sequence[PublishMiddleware] = ()
    ) -> None:
        self._connection = connection
        self._telemetry = telemetry
        self._middleware = middleware

    async def publish(
        self,
        envelope: Envelope,
        *,
        parent: TraceContext | None = None,
        ttl_s: int | None = None,
        timeout_s: float | None = None,
    ) -> Envelope:
        """Publishes through the middleware, waits until the broker has stored it, and returns what was stored.

        To one agent it goes on the work subject of its priority, to `*` on the event subject. The broker
        counts the same `from` and `message_id` once within two minutes. `ttl_s`: forgotten after that many
        seconds if nobody took it. Raises `broker.unavailable` after `timeout_s` (default: the setting
        `publish_timeout_s`), `broker.full`, `protocol.too_large`. Cancelled, it may or may not be stored.
        """
        if not self._middleware:
            await self._store(envelope, parent, ttl_s, timeout_s)
            return envelope
        sent = envelope

        async def innermost(changed: Envelope) -> None:
            nonlocal sent
            sent = changed
            await self._store(changed, parent, ttl_s, timeout_s)

        await wrap(innermost, self._middleware)(envelope)
        return sent

    async def _store(
        self, envelope: Envelope, parent: TraceContext | None, ttl_s: int | None, timeout_s: float | None
    ) -> None:
        subject = self._subject(envelope)
        span = self._telemetry.start(
            lambda: f"send {envelope.to}.{envelope.type}",
            SpanKind.PRODUCER,
            trace_id=envelope.trace_id,
            parent=parent,
            sampling_key=envelope.workflow_id or envelope.trace_id,
            attributes=lambda: message_attributes("send", envelope),
        )
        headers = {"Nats-Msg-Id": dedupe_header(envelope.sender, envelope.message_id)}
        if span.context is not None:
            headers.update(span.context.to_headers())
        if ttl_s is not None:
            headers["Nats-TTL"] = str(ttl_s)
        try:
            stored = await store(
                self._connection,
                subject,
                envelope.encode(),
                headers,
                timeout_s=timeout_s if timeout_s is not None else self._connection.settings.publish_timeout_s,
            )
            if stored.duplicate:
                span.set({"bus.duplicate": True})
        except BusError as problem:
            span.fail(problem.info.code, problem.info.message)
            raise
        finally:
            span.end()

    def _subject(self, envelope: Envelope) -> str:
        subjects = self._connection.subjects
        if envelope.to == BROADCAST:
            return subjects.event(envelope.sender, envelope.workflow_id, envelope.type)
        priority = envelope.extensions.get("priority", "normal")
        lane = priority if priority in LANES else "normal"
        return subjects.work(envelope.to, lane, envelope.sender, envelope.type)
