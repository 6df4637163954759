"""Instruments: counters and histograms that cost a few hundred nanoseconds a record, and what is read from them.

A series is bound to its labels once and then only added to. The reader is another thread; it may see a record whose
sum is not in yet, and never a broken one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

# Seconds. From a handler that only looks something up to one that asks a slow model.
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

Labels = tuple[tuple[str, str], ...]


class Kind(StrEnum):
    """What a metric is: counters only grow, gauges are what holds now."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a histogram holds: one count for each bound and one for what is above all, and the sum of the values."""

    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """How many values it holds."""
        return sum(self.counts)

    def plus(self, other: Distribution) -> Distribution:
        """Both together."""
        return Distribution(tuple(map(sum, zip(self.counts, other.counts, strict=True))), self.sum + other.sum)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric with all its series. `unit` is UCUM: `s`, or `{message}` for a plain count."""

    name: str
    kind: Kind
    unit: str
    description: str
    values: Mapping[Labels, float | Distribution]


class Series:
    """One pre-bound set of labels: how many, and for those that were timed their distribution."""

    __slots__ = ("_counts", "_sum", "_untimed", "labels")

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self._untimed = 0
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum = 0.0

    def record(self, seconds: float | None) -> None:
        """Counts one; None is for what took no time worth a place in the distribution."""
        if seconds is None:
            self._untimed += 1
        else:
            self._counts[bisect_left(BOUNDS_S, seconds)] += 1
            self._sum += seconds

    @property
    def count(self) -> int:
        """How many were counted."""
        return self._untimed + sum(self._counts)

    @property
    def distribution(self) -> Distribution:
        """Those that were timed."""
        return Distribution(tuple(self._counts), self._sum)


def merged(metrics: Iterable[Metric]) -> list[Metric]:
    """Metrics of several services as one list, each name once.

    Series of the same name and labels (two replicas of an agent in one process) are added; of gauges that a replica
    reads from the server the greatest stays, because all of them mean the same queue.
    """
    found: dict[str, Metric] = {}
    for metric in metrics:
        known = found.get(metric.name)
        if known is None:
            found[metric.name] = metric
            continue
        values = dict(known.values)
        for labels, value in metric.values.items():
            there = values.get(labels)
            values[labels] = value if there is None else _together(metric, there, value)
        found[metric.name] = replace(known, values=values)
    return list(found.values())


def _together(metric: Metric, one: float | Distribution, other: float | Distribution) -> float | Distribution:
    if isinstance(one, Distribution) and isinstance(other, Distribution):
        return one.plus(other)
    assert not isinstance(one, Distribution)
    assert not isinstance(other, Distribution)
    if metric.kind is Kind.GAUGE and metric.name.startswith(("bus.queue.", "bus.broker.")):
        return max(one, other)
    return one + other
