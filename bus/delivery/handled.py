"""What was handled and waits for its commit."""

from __future__ import annotations

from collections.abc import Callable

from bus.broker.pull import Delivery
from bus.errors import BusError
from bus.telemetry.spans import Span
from bus.workflow.completions import Completion

# Type and phase of a message, for the metrics.
Kind = tuple[str, str | None]


class Handled:
    """One of them. It holds no payload: only what the settling needs. `told` hears of its end."""

    __slots__ = ("_committed", "delivery", "key", "kind", "record", "reply", "span", "told", "trace_id")

    def __init__(
        self,
        record: Completion,
        delivery: Delivery,
        key: bytes,
        kind: Kind,
        trace_id: str,
        span: Span,
        told: Callable[[Delivery], None],
        committed: Callable[[Handled, BusError | None], None],
    ) -> None:
        self.record = record
        self.reply = delivery.reply
        self.delivery = delivery
        self.key = key
        self.kind = kind
        self.trace_id = trace_id
        self.span = span
        self.told = told
        self._committed = committed

    def ended(self, problem: BusError | None) -> None:
        """Hears that it is committed, or why it could not be."""
        self._committed(self, problem)
