"""What metrics cost a message: ours, beside the same records through the OpenTelemetry SDK.

Each line is one message: its send (a histogram and a counter) and its delivery (the same), with the same labels.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from bus.telemetry.metrics import ACK, ServiceMetrics

BATCH = 1000


def ours() -> Callable[[], None]:
    """The two calls of the publisher and the pipeline."""
    metrics = ServiceMetrics("worker")
    deliveries = metrics.deliveries({"work": "execute"})
    sends = metrics.sends

    def one() -> None:
        sends.ended("worker", "work", "execute", "", 0.0012)
        deliveries.settled("work", "execute", ACK, "", 0.034)

    return one


def ours_with_clock() -> Callable[[], None]:
    """With the two readings of the clock that a send needs; a delivery's time is measured for its span anyway."""
    record = ours()

    def one() -> None:
        began = time.perf_counter()
        record()
        time.perf_counter() - began

    return one


def sdk(*, is_bound: bool) -> Callable[[], None]:
    """The SDK, with its attributes built for each message, or (`is_bound`) made once and for all."""
    meter = MeterProvider(metric_readers=[InMemoryMetricReader()]).get_meter("bench")
    sent = meter.create_counter("messaging.client.sent.messages")
    operation = meter.create_histogram("messaging.client.operation.duration", unit="s")
    consumed = meter.create_counter("messaging.client.consumed.messages")
    process = meter.create_histogram("messaging.process.duration", unit="s")

    def send_attributes() -> dict[str, str]:
        return {
            "messaging.system": "nats", "messaging.operation.name": "send", "bus.agent": "worker", "bus.to": "worker",
            "bus.type": "work", "bus.phase": "execute",
        }  # fmt: skip

    def process_attributes() -> dict[str, str]:
        return {
            "messaging.system": "nats", "messaging.operation.name": "process", "bus.agent": "worker",
            "bus.type": "work", "bus.phase": "execute", "bus.outcome": "ack",
        }  # fmt: skip

    kept_send, kept_process = send_attributes(), process_attributes()

    def one() -> None:
        of_send = kept_send if is_bound else send_attributes()
        of_process = kept_process if is_bound else process_attributes()
        sent.add(1, of_send)
        operation.record(0.0012, of_send)
        consumed.add(1, of_process)
        process.record(0.034, of_process)

    return one


def cost_us(work: Callable[[], None], *, batches: int) -> float:
    """Microseconds of this thread for one call. The best batch, because what else runs can only add to it."""
    samples = []
    for _ in range(batches):
        started = time.thread_time()
        for _ in range(BATCH):
            work()
        samples.append((time.thread_time() - started) * 1e6 / BATCH)
    return min(samples)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=100)
    options = parser.parse_args()
    ways = {
        "nothing": lambda: None,
        "ours": ours(),
        "ours, with the clock": ours_with_clock(),
        "SDK, attributes kept": sdk(is_bound=True),
        "SDK, attributes built": sdk(is_bound=False),
    }
    print(f"{'metrics of one message':<26}{'us':>8}")
    for name, work in ways.items():
        print(f"{name:<26}{cost_us(work, batches=options.batches):>8.2f}", flush=True)


if __name__ == "__main__":
    main()
