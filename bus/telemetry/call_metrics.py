"""The metrics of calls: what one service answered as a callee, what it asked as a caller, and what it has in hand.

Names follow the OpenTelemetry conventions for remote procedure calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from bus.telemetry.instruments import Kind, Labels, Metric, Series

# Stands for what the service does not have, and for what comes after a limit is reached.
OTHER = "_other"
MAX_CAPABILITIES = 512


class Load(Protocol):
    """Who takes calls, and knows how many it has."""

    concurrency: int
    turned_away: int

    @property
    def running(self) -> int:
        """How many run."""

    @property
    def waiting(self) -> int:
        """How many wait."""


class Tally(NamedTuple):
    """The calls of one capability so far. `last_error` is the code of the newest failure, empty without one."""

    calls: int
    errors: int
    last_error: str
    seconds: float


class CallMetrics:
    """The calls of one service, on both sides."""

    __slots__ = ("_agent", "_answered", "_asked", "_capabilities", "_last_errors", "_load")

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._answered: dict[tuple[str, str], Series] = {}
        self._asked: dict[tuple[str, str], Series] = {}
        self._capabilities: frozenset[str] = frozenset()
        self._last_errors: dict[str, str] = {}
        self._load: Load | None = None

    def serve(self, capabilities: Iterable[str], load: Load) -> None:
        """The service answers these; their series begin at zero, so that the first error is an increase."""
        self._capabilities = frozenset(capabilities)
        self._load = load
        for capability in sorted(self._capabilities):
            self._find(self._answered, capability, "")

    def answered(self, capability: str, code: str, seconds: float) -> None:
        """Counts one call that was answered here; `code` is the error's, empty for none."""
        series = self._answered.get((capability, code))
        if series is None:
            # A caller writes names as it likes.
            known = capability if capability in self._capabilities else OTHER
            series = self._find(self._answered, known, code)
        series.record(seconds)
        if code:
            self._last_errors[capability if capability in self._capabilities else OTHER] = code

    def tally(self, capability: str) -> Tally:
        """What was answered of one capability."""
        found = [(code, one) for (name, code), one in self._answered.items() if name == capability]
        return Tally(
            sum(one.count for _, one in found),
            sum(one.count for code, one in found if code),
            self._last_errors.get(capability, ""),
            sum(one.distribution.sum for _, one in found),
        )

    def asked(self, capability: str, code: str, seconds: float) -> None:
        """Counts one call that was made from here, all its attempts together."""
        series = self._asked.get((capability, code))
        if series is None:
            known = capability
            if capability not in {name for name, _ in self._asked} and len(self._asked) >= MAX_CAPABILITIES:
                known = OTHER
            series = self._find(self._asked, known, code)
        series.record(seconds)

    def _find(self, side: dict[tuple[str, str], Series], capability: str, code: str) -> Series:
        series = side.get((capability, code))
        if series is None:
            labels: Labels = (
                ("rpc.system.name", "nats"),
                ("rpc.method", capability),
                ("bus.agent", self._agent),
                ("error.type", code),
            )
            side[capability, code] = series = Series(labels)
        return series

    def read(self) -> Iterator[Metric]:
        """The metrics; those of a callee only where there is one."""
        for name, description, side in (
            ("rpc.client.call.duration", "From a call until its result, all attempts together", self._asked),
            ("rpc.server.call.duration", "From the bytes of a call to its result", self._answered),
        ):
            values = {one.labels: one.distribution for one in list(side.values())}
            yield Metric(name, Kind.HISTOGRAM, "s", description, values)
        if (load := self._load) is None:
            return
        labels: Labels = (("bus.agent", self._agent),)
        for name, kind, description, value in (
            ("bus.calls.in_flight", Kind.GAUGE, "Calls that run in this replica", load.running),
            ("bus.calls.in_flight.limit", Kind.GAUGE, "How many may run in it at once", load.concurrency),
            ("bus.calls.waiting", Kind.GAUGE, "Calls that wait in this replica", load.waiting),
            ("bus.calls.busy", Kind.COUNTER, "Calls that were refused because too many wait", load.turned_away),
        ):
            yield Metric(name, kind, "{call}", description, {labels: value})
