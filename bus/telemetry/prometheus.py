"""The scrape endpoint for Prometheus, through the library prometheus-client (extra `prometheus`)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from bus.config import SettingsError
from bus.telemetry.instruments import BOUNDS_S, Distribution, Kind, Metric, merged
from bus.telemetry.metrics import ServiceMetrics

log = logging.getLogger("bus.telemetry")

STOP_S = 2.0

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class MetricsCollector(Collector):
    """All metrics of several services of one process, read when Prometheus asks.

    To have them on an endpoint of your own, register it with your registry.
    """

    def __init__(self, services: Callable[[], Iterable[ServiceMetrics]]) -> None:
        self._services = services

    def collect(self) -> Iterator[Family]:
        """The families; called from the thread of the request."""
        for metric in merged(metric for service in self._services() for metric in service.read()):
            if metric.values:
                yield _family(metric)

    def describe(self) -> list[Family]:
        """None: it is not read while it is registered."""
        return []


@contextlib.contextmanager
def scrape_endpoint(services: Callable[[], Iterable[ServiceMetrics]], *, host: str, port: int) -> Iterator[str]:
    """Answers `GET /metrics` as long as the body runs; yields its address. Port 0 takes a free one.

    It runs in threads of its own and asks nobody, so it answers whatever the broker does. Raises SettingsError when
    the address cannot be had.
    """
    registry = CollectorRegistry()
    registry.register(MetricsCollector(services))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as problem:
        raise SettingsError(
            f"--metrics-port {port}: {host}:{port} cannot be listened on: {problem.strerror or problem}; "
            "take another port, or 0 for any"
        ) from problem
    address = f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"
    log.info("metrics for Prometheus at %s", address)
    try:
        yield address
    finally:
        server.shutdown()
        server.server_close()
        thread.join(STOP_S)


def prometheus_name(metric: Metric) -> str:
    """The name without the suffix that the library adds: dots become `_`, seconds are named."""
    name = metric.name.replace(".", "_")
    return f"{name}_seconds" if metric.unit == "s" else name


def _family(metric: Metric) -> Family:
    name = prometheus_name(metric)
    names = [label.replace(".", "_") for label, _ in next(iter(metric.values))]
    if metric.kind is Kind.HISTOGRAM:
        histogram = HistogramMetricFamily(name, metric.description, labels=names)
        for labels, value in metric.values.items():
            assert isinstance(value, Distribution)
            histogram.add_metric([text for _, text in labels], _buckets(value), value.sum)
        return histogram
    family = (CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily)(
        name, metric.description, labels=names
    )
    for labels, value in metric.values.items():
        assert not isinstance(value, Distribution)
        family.add_metric([text for _, text in labels], value)
    return family


def _buckets(value: Distribution) -> list[tuple[str, float]]:
    total, found = 0.0, list[tuple[str, float]]()
    for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), value.counts, strict=True):
        total += count
        found.append((bound, total))
    return found
