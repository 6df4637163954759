"""The metrics of one service: what it handled, what it sent, and what is observed when somebody reads them.

Names follow the OpenTelemetry conventions for messaging. Labels are names that the service itself knows (agent,
type, phase, outcome, error code), never ids or subjects; what a stranger writes into a message makes no new series.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from bus.telemetry.call_metrics import CallMetrics
from bus.telemetry.instruments import Kind, Labels, Metric, Series, merged

# Stands for every type without a handler, and for what comes after a limit is reached.
OTHER = "_other"
MAX_PHASES = 32
MAX_DESTINATIONS = 512

# Outcomes of a delivery.
ACK = "ack"
DUPLICATE = "duplicate"
RETRY = "retry"
DEAD = "dead"
REFUSED = "refused"
HELD = "held"
LEFT = "left"
HANDED_BACK = "handed_back"
UNSETTLED = "unsettled"

_BY_TYPE = (
    ("bus.duplicates", "Deliveries of what was handled before", (DUPLICATE,)),
    ("bus.retries", "Deliveries that failed and are tried again", (RETRY,)),
    ("bus.dead_letters", "Messages that became dead letters", (DEAD, REFUSED)),
    ("bus.refused", "Dead letters that no handler has seen", (REFUSED,)),
)


Record = Callable[[float | None], None]


class Spans(Protocol):
    """Who knows what became of spans."""

    exported: int
    dropped: int


class Deliveries:
    """What became of the deliveries of one agent. `phases` are its message types with the phases that they have."""

    __slots__ = ("_agent", "_bound", "_known_phases", "_phases", "_series")

    def __init__(self, agent: str, phases: Mapping[str, str | None]) -> None:
        self._agent = agent
        self._phases = phases
        self._known_phases = {"", *(phase for phase in phases.values() if phase)}
        self._series: dict[tuple[str, str, str, str], Series] = {}
        self._bound: dict[tuple[str, str | None, str, str], Record] = {}
        for type, phase in phases.items():
            self._find(type, phase or "", ACK, "")

    def settled(self, type: str, phase: str | None, outcome: str, code: str = "", seconds: float | None = None) -> None:
        """Counts one delivery. `code` is the error's, `seconds` the handler's time if one ran."""
        try:
            record = self._bound[type, phase, outcome, code]
        except KeyError:
            record = self._bind(type, phase, outcome, code).record
        record(seconds)

    def _bind(self, type: str, phase: str | None, outcome: str, code: str) -> Series:
        if type not in self._phases:
            return self._find(OTHER, "", outcome, code)
        named = phase or self._phases[type] or ""
        if named not in self._known_phases:
            # A sender writes phases as it likes.
            if len(self._known_phases) >= MAX_PHASES:
                return self._find(type, OTHER, outcome, code)
            self._known_phases.add(named)
        series = self._find(type, named, outcome, code)
        self._bound[type, phase, outcome, code] = series.record
        return series

    def _find(self, type: str, phase: str, outcome: str, code: str) -> Series:
        key = (type, phase, outcome, code)
        series = self._series.get(key)
        if series is None:
            labels: Labels = (
                ("messaging.system", "nats"),
                ("messaging.operation.name", "process"),
                ("messaging.operation.type", "process"),
                ("messaging.destination.template", _template(self._agent, type)),
                ("messaging.consumer.group.name", self._agent),
                ("bus.agent", self._agent),
                ("bus.type", type),
                ("bus.phase", phase),
                ("bus.outcome", outcome),
                ("error.type", code),
            )
            self._series[key] = series = Series(labels)
        return series

    def read(self) -> Iterator[Metric]:
        """The metrics. Those by type begin at zero, so that the first dead letter is an increase."""
        series = list(self._series.items())
        yield Metric(
            "messaging.process.duration", Kind.HISTOGRAM, "s", "Time that handlers took",
            {one.labels: one.distribution for _, one in series if one.distribution.count or one.count == 0},
        )  # fmt: skip
        yield Metric(
            "messaging.client.consumed.messages", Kind.COUNTER, "{message}", "Deliveries, by what became of them",
            {one.labels: one.count for _, one in series},
        )  # fmt: skip
        for name, description, outcomes in _BY_TYPE:
            counts = Counter[str](dict.fromkeys([*self._phases, OTHER], 0))
            for (type, _, outcome, _), one in series:
                if outcome in outcomes:
                    counts[type] += one.count
            yield Metric(
                name, Kind.COUNTER, "{message}", description,
                {(("bus.agent", self._agent), ("bus.type", type)): count for type, count in counts.items()},
            )  # fmt: skip


class Sends:
    """What one service sent. Of destinations that it sends to, 512 have series of their own."""

    __slots__ = ("_agent", "_bound", "_destinations", "_phases", "_series")

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._destinations: set[tuple[str, str]] = set()
        self._phases: set[str] = {""}
        self._series: dict[tuple[str, str, str, str], Series] = {}
        self._bound: dict[tuple[str, str, str | None, str], Record] = {}

    def ended(self, to: str, type: str, phase: str | None, code: str, seconds: float) -> None:
        """Counts one send: the broker has stored it, or it failed with an error code."""
        try:
            record = self._bound[to, type, phase, code]
        except KeyError:
            record = self._bind(to, type, phase, code).record
        record(seconds)

    def _bind(self, to: str, type: str, phase: str | None, code: str) -> Series:
        is_known = True
        named = phase or ""
        if named not in self._phases:
            if len(self._phases) >= MAX_PHASES:
                named, is_known = OTHER, False
            else:
                self._phases.add(named)
        if (to, type) not in self._destinations:
            if len(self._destinations) >= MAX_DESTINATIONS:
                return self._find(OTHER, OTHER, "", code)
            self._destinations.add((to, type))
        series = self._find(to, type, named, code)
        if is_known:
            self._bound[to, type, phase, code] = series.record
        return series

    def _find(self, to: str, type: str, phase: str, code: str) -> Series:
        key = (to, type, phase, code)
        series = self._series.get(key)
        if series is None:
            labels: Labels = (
                ("messaging.system", "nats"),
                ("messaging.operation.name", "send"),
                ("messaging.operation.type", "send"),
                ("messaging.destination.template", _template(to, type)),
                ("bus.agent", self._agent),
                ("bus.to", to),
                ("bus.type", type),
                ("bus.phase", phase),
                ("error.type", code),
            )
            self._series[key] = series = Series(labels)
        return series

    def read(self) -> Iterator[Metric]:
        """The metrics."""
        series = list(self._series.values())
        yield Metric(
            "messaging.client.operation.duration", Kind.HISTOGRAM, "s", "From a send until the broker has stored it",
            {one.labels: one.distribution for one in series},
        )  # fmt: skip
        yield Metric(
            "messaging.client.sent.messages", Kind.COUNTER, "{message}", "Messages that were sent, or could not be",
            {one.labels: one.count for one in series},
        )  # fmt: skip


class ServiceMetrics:
    """All metrics of one service."""

    def __init__(self, service: str) -> None:
        self.service = service
        self.sends = Sends(service)
        self.calls = CallMetrics(service)
        self._observed: list[Callable[[], Iterable[Metric]]] = [self.sends.read, self.calls.read]

    def deliveries(self, phases: Mapping[str, str | None]) -> Deliveries:
        """The instruments of an agent's deliveries."""
        found = Deliveries(self.service, phases)
        self._observed.append(found.read)
        return found

    def observe(self, read: Callable[[], Iterable[Metric]]) -> None:
        """Adds metrics that `read` makes when somebody asks; it is called from other threads, and must not wait."""
        self._observed.append(read)

    def observe_spans(self, spans: Spans | None) -> None:
        """Adds what became of spans; without an endpoint for them both stay at zero."""

        def read() -> Iterator[Metric]:
            exported, dropped = (spans.exported, spans.dropped) if spans is not None else (0, 0)
            labels: Labels = (("bus.agent", self.service),)
            yield Metric("bus.spans.exported", Kind.COUNTER, "{span}", "Spans that were sent", {labels: exported})
            yield Metric("bus.spans.dropped", Kind.COUNTER, "{span}", "Spans that were lost", {labels: dropped})

        self._observed.append(read)

    def read(self) -> list[Metric]:
        """Everything as it is now, from any thread."""
        return merged(metric for read in list(self._observed) for metric in read())


def _template(to: str, type: str) -> str:
    """The `messaging.destination.template` of the spans, as bounded as its two parts."""
    return OTHER if OTHER in (to, type) else f"{to}.{type}"
