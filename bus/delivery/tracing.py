"""The spans of a delivery: its `process` span, and a `settle` span for a settlement that is more than a plain ack."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from bus.broker.pull import Delivery
from bus.delivery.attributes import Attributes, KindAttributes, id_attributes, kind_attributes
from bus.delivery.letter import attempts_before
from bus.delivery.settlement import Settlement, Verdict
from bus.envelope import Envelope
from bus.errors import BusError
from bus.telemetry.context import TraceContext
from bus.telemetry.recorder import CommonAttributes
from bus.telemetry.spans import PassingSpan, Span, SpanKind, Telemetry


class DeliveryTracing:
    """Opens the spans of one agent's deliveries. `phases` are those that its handlers name, by message type."""

    __slots__ = ("_agent", "_kinds", "_phases", "_telemetry")

    def __init__(self, telemetry: Telemetry, *, agent: str, phases: Mapping[str, str | None]) -> None:
        self._telemetry = telemetry
        self._agent = agent
        self._phases = phases
        self._kinds = KindAttributes()

    def process(self, delivery: Delivery, envelope: Envelope | None) -> Span:
        """The span of one delivery, below the `send` that its headers name; `envelope` is None for unreadable bytes."""
        if self._telemetry.passes(delivery.headers):
            return PassingSpan(delivery.headers)
        trace_id = envelope.trace_id if envelope is not None else f"{delivery.subject} {delivery.stream_seq}"
        # Nothing of the task around it counts: the headers are all that the message brings.
        parent = TraceContext.from_headers(delivery.headers)
        key = (envelope.workflow_id if envelope is not None else None) or trace_id
        unrecorded = self._telemetry.unrecorded(trace_id=trace_id, parent=parent, sampling_key=key)
        if unrecorded is not None:
            return unrecorded
        return self._telemetry.recorded(
            f"process {self._destination(envelope)}",
            SpanKind.CONSUMER,
            trace_id=trace_id,
            parent=parent,
            link_parent=True,
            attributes=self._own(delivery, envelope),
            common=self._common(delivery, envelope),
        )

    @contextlib.contextmanager
    def settle(
        self, process: Span | None, delivery: Delivery, envelope: Envelope | None, settlement: Settlement
    ) -> Iterator[None]:
        """A span around a settlement that the pipeline does itself: a retry, a dead letter, a duplicate's ack.

        What was handled is acknowledged in groups; that is part of the `process` span. A settlement that fails is
        an error of both.
        """
        if process is None or not process.is_recording or settlement.verdict is Verdict.LEAVE:
            yield
            return
        span = self._telemetry.start(
            lambda: f"settle {self._destination(envelope)}",
            SpanKind.CLIENT,
            trace_id="",
            parent=process.context,
            sampling_key="",
            attributes=lambda: self._settlement_attributes(delivery, envelope, settlement),
        )
        try:
            yield
        except BusError as problem:
            span.fail(problem.info.code, problem.info.message)
            raise
        finally:
            span.end()

    def given_up(self, delivery: Delivery, envelope: Envelope | None, *, code: str, reason: str, dead_id: int) -> None:
        """The span of a message that the server gave up on: nobody settled it, so no `process` span tells of it."""
        span = self._telemetry.start(
            lambda: f"settle {self._destination(envelope)}",
            SpanKind.CLIENT,
            trace_id=envelope.trace_id if envelope is not None else f"{delivery.subject} {delivery.stream_seq}",
            parent=TraceContext.from_headers(delivery.headers),
            sampling_key=(envelope.workflow_id or envelope.trace_id) if envelope is not None else delivery.subject,
            link_parent=True,
            attributes=lambda: self._settlement_attributes(delivery, envelope, Settlement(Verdict.DEAD)),
        )
        span.event("dead_letter", {"bus.dead_letter.id": dead_id, "error.type": code})
        span.fail(code, reason)
        span.end()

    def _destination(self, envelope: Envelope | None) -> str:
        return f"{envelope.to}.{envelope.type}" if envelope is not None else self._agent

    def _own(self, delivery: Delivery, envelope: Envelope | None) -> Attributes:
        """The attributes of one delivery."""
        attributes = id_attributes(envelope) if envelope is not None else {}
        attributes["messaging.message.body.size"] = len(delivery.data)
        attributes["bus.attempt"] = attempts_before(delivery.headers) + delivery.attempt
        return attributes

    def _common(self, delivery: Delivery, envelope: Envelope | None) -> CommonAttributes:
        if envelope is None:
            return CommonAttributes(self._of_kind("process", delivery, envelope))
        subject = delivery.subject
        return self._kinds.of(envelope, subject, lambda: self._of_kind("process", delivery, envelope), epoch=0)

    def _of_kind(self, operation: str, delivery: Delivery, envelope: Envelope | None) -> Attributes:
        """The attributes that all deliveries of its kind have."""
        attributes: Attributes = {
            "messaging.destination.name": delivery.subject,
            "messaging.consumer.group.name": self._agent,
        }
        if envelope is None:
            return attributes | {
                "messaging.system": "nats",
                "messaging.operation.name": operation,
                "messaging.operation.type": operation,
                "bus.agent": self._agent,
            }
        attributes |= kind_attributes(operation, envelope, agent=self._agent)
        if envelope.phase is None and (phase := self._phases.get(envelope.type)) is not None:
            attributes["bus.phase"] = phase
        return attributes

    def _settlement_attributes(
        self, delivery: Delivery, envelope: Envelope | None, settlement: Settlement
    ) -> Attributes:
        attributes = self._of_kind("settle", delivery, envelope) | self._own(delivery, envelope)
        attributes["bus.settlement"] = settlement.verdict.value
        if settlement.verdict is Verdict.NAK:
            attributes["bus.retry_delay_s"] = round(settlement.delay_s, 3)
        return attributes
