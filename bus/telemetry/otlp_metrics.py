"""Metrics as OTLP over HTTP with JSON bodies, sent now and then by a thread of their own, and once at the end."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

import orjson

from bus.config import SettingsError
from bus.telemetry.instruments import BOUNDS_S, Distribution, Kind, Labels, Metric
from bus.telemetry.metrics import ServiceMetrics
from bus.telemetry.otlp import attributes_of
from bus.telemetry.posting import OtlpPost, endpoint, resource_variables

log = logging.getLogger("bus.telemetry")

DEFAULT_INTERVAL_MS = 60_000
TELL_EVERY_S = 600.0
# Receivers of spans alone, Jaeger among them, answer so.
NOT_TAKEN = ("HTTP 404", "HTTP 405", "HTTP 501")
CUMULATIVE = 2


class MetricExport:
    """Sends the metrics of one service to one address, every `interval_s` seconds and at the end."""

    def __init__(self, metrics: ServiceMetrics, url: str, resource: Mapping[str, str], *, interval_s: float) -> None:
        self._metrics = metrics
        self._post = OtlpPost(url, "metrics")
        self._resource = {"attributes": attributes_of({**resource_variables(), **resource})}
        self._interval_s = interval_s
        self._began_ns = time.time_ns()
        self._told_at = float("-inf")
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metric export", daemon=True)
        self._thread.start()

    @classmethod
    def from_environment(cls, metrics: ServiceMetrics, resource: Mapping[str, str]) -> MetricExport | None:
        """One that the standard `OTEL_*` variables ask for, or None.

        Raises SettingsError, naming the variable, for values that they cannot have.
        """
        url = endpoint(signal="metrics")
        return None if url is None else cls(metrics, url, resource, interval_s=_interval_s(os.environ))

    def close(self, timeout_s: float) -> None:
        """Sends the last values, within `timeout_s`; blocks. What is not sent by then is given up."""
        self._closing.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closing.wait(self._interval_s)
            if not (body := self._body()):
                continue
            problem = self._post.send(body)
            if problem in NOT_TAKEN:
                log.info("%s takes no metrics (%s); OTEL_METRICS_EXPORTER=none says so", self._post.url, problem)
                return
            if problem and time.monotonic() - self._told_at > TELL_EVERY_S:
                self._told_at = time.monotonic()
                log.warning("metrics could not be sent to %s: %s", self._post.url, problem)

    def _body(self) -> bytes:
        metrics = [metric for metric in self._metrics.read() if metric.values]
        if not any(map(_has_counted, metrics)):
            return b""
        now_ns = time.time_ns()
        encoded = [_metric(metric, self._began_ns, now_ns) for metric in metrics]
        scope = {"scope": {"name": "envelope-bus"}, "metrics": encoded}
        return orjson.dumps({"resourceMetrics": [{"resource": self._resource, "scopeMetrics": [scope]}]})


def _has_counted(metric: Metric) -> bool:
    return metric.kind is Kind.COUNTER and any(metric.values.values())


def _interval_s(environment: Mapping[str, str]) -> float:
    text = environment.get("OTEL_METRIC_EXPORT_INTERVAL") or str(DEFAULT_INTERVAL_MS)
    try:
        interval_ms = float(text)
    except ValueError:
        interval_ms = 0.0
    if not 1 <= interval_ms <= 86_400_000:
        raise SettingsError(f"OTEL_METRIC_EXPORT_INTERVAL={text!r} is not a number of milliseconds, 1 to 86400000")
    return interval_ms / 1000


def _metric(metric: Metric, began_ns: int, now_ns: int) -> dict[str, Any]:
    points = [_point(labels, value, began_ns, now_ns) for labels, value in metric.values.items()]
    about: dict[str, Any] = {"name": metric.name, "unit": metric.unit, "description": metric.description}
    if metric.kind is Kind.HISTOGRAM:
        return about | {"histogram": {"dataPoints": points, "aggregationTemporality": CUMULATIVE}}
    if metric.kind is Kind.COUNTER:
        return about | {"sum": {"dataPoints": points, "aggregationTemporality": CUMULATIVE, "isMonotonic": True}}
    for point in points:
        del point["startTimeUnixNano"]
    return about | {"gauge": {"dataPoints": points}}


def _point(labels: Labels, value: float | Distribution, began_ns: int, now_ns: int) -> dict[str, Any]:
    point: dict[str, Any] = {
        # An empty label says nothing, and receivers differ in what they make of it.
        "attributes": attributes_of({name: text for name, text in labels if text}),
        "startTimeUnixNano": str(began_ns),
        "timeUnixNano": str(now_ns),
    }
    if isinstance(value, Distribution):
        return point | {
            "count": str(value.count),
            "sum": value.sum,
            "bucketCounts": [str(count) for count in value.counts],
            "explicitBounds": list(BOUNDS_S),
        }
    return point | ({"asInt": str(value)} if isinstance(value, int) else {"asDouble": value})
