"""What tracing costs a message: untraced, unsampled and sampled, beside FastStream with its OpenTelemetry.

The first table times the calls alone, in one process: the spans of one message with their headers, without a broker.
The second table is whole messages over a broker in two processes, as in `bench_delivery.py`; compare the CPU there.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from bus import Envelope
from bus.broker.pull import Delivery
from bus.delivery.attributes import message_attributes
from bus.delivery.tracing import DeliveryTracing
from bus.telemetry.spans import SpanKind, Telemetry
from bus.testing.server import NatsServer
from tests.bench import bench_delivery
from tests.bench.ways import Task, Way, bus_consume, bus_publish, faststream_consume, faststream_publish

MODES = {
    "untraced": {},
    "unsampled": {"OTEL_TRACES_SAMPLER": "parentbased_always_off"},
    "sampled": {"OTEL_TRACES_SAMPLER": "parentbased_always_on"},
}
BASES = {"bus": "bus, untraced", "FastStream": "FastStream, untraced"}
BATCH = 1000


def tracing_ways(receiver: str) -> dict[str, Way]:
    """The ways of the second table, each library untraced, unsampled and sampled."""
    found: dict[str, Way] = {}
    for mode, sampler in MODES.items():
        variables = {} if mode == "untraced" else {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver, **sampler}
        traced = mode != "untraced"
        found[f"bus, {mode}"] = Way(bus_publish, bus_consume, variables)
        found[f"FastStream, {mode}"] = Way(
            partial(faststream_publish, traced=traced), partial(faststream_consume, traced=traced), variables
        )
    return found


def spans_us(mode: str, receiver: str, *, count: int, rounds: int) -> float:
    """Microseconds of this thread that the spans and headers of one message take: its send and its process."""
    variables = {} if mode == "untraced" else {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver, **MODES[mode]}
    os.environ.update(variables)
    sender, receiving = Telemetry("load", namespace="bus"), Telemetry("worker", namespace="bus")
    for name in variables:
        del os.environ[name]
    tracing = DeliveryTracing(receiving, agent="worker", phases={})
    envelopes = [
        Envelope(sender="load", to="worker", type="work", workflow_id=f"w-{number}", payload={"number": number})
        for number in range(BATCH)
    ]
    delivery = Delivery("bus.v1.work.worker.normal.load.work", b"x" * 700, {}, "reply", 1, 1, time.time_ns(), 0)

    def one(envelope: Envelope) -> None:
        send = sender.start(
            lambda: f"send {envelope.to}.{envelope.type}",
            SpanKind.PRODUCER,
            trace_id=envelope.trace_id,
            parent=None,
            sampling_key=envelope.workflow_id or envelope.trace_id,
            attributes=lambda: message_attributes("send", envelope, agent=envelope.sender),
        )
        headers = send.context.to_headers() if send.context is not None else {}
        send.end()
        process = tracing.process(delivery._replace(headers=headers), envelope)
        if process.is_recording:
            process.set({"bus.settlement": "ack", "bus.exec_ms": 1.0})
        process.end()

    def nothing(envelope: Envelope) -> None:
        delivery._replace(headers={})

    def timed(work: Callable[[Envelope], None]) -> float:
        samples = []
        for _ in range(rounds * count // BATCH):
            started = time.thread_time()
            for envelope in envelopes:
                work(envelope)
            samples.append((time.thread_time() - started) * 1e6 / BATCH)
        # The best, because what else the machine does can only add to it.
        return min(samples)

    used = timed(one) - timed(nothing)

    async def close() -> None:
        await sender.close()
        await receiving.close()

    asyncio.run(close())
    return used


def calls_table(receiver: str, *, count: int, rounds: int) -> None:
    """Prints the first table."""
    print("spans and headers of one message, the calls alone")
    print(f"{'':<24}{'us':>8}{'more than untraced':>22}")
    base = 0.0
    for mode in MODES:
        used = spans_us(mode, receiver, count=count, rounds=rounds)
        base = base or used
        print(f"{'bus, ' + mode:<24}{used:>8.2f}{used - base:>22.2f}", flush=True)


def messages_table(options: argparse.Namespace, url: str, receiver: str) -> None:
    """Prints the second table."""
    found = tracing_ways(receiver)
    samples: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(options.rounds):
        for name, way in found.items():
            task = Task(url, f"b{uuid.uuid4().hex[:8]}", options.messages, 0)
            samples[name].append(bench_delivery.run_way(way, name, "asyncio", task, __file__).cpu_us)
    medians = {name: statistics.median(cpu) for name, cpu in samples.items()}
    print(f"whole messages, CPU of both sides; {options.messages} messages, {options.rounds} rounds, medians")
    print(f"{'':<24}{'CPU us':>8}{'more than untraced':>22}")
    for name, cpu in medians.items():
        print(f"{name:<24}{cpu:>8.1f}{cpu - medians[BASES[name.split(',')[0]]]:>22.1f}", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls-only", action="store_true", help="the first table alone")
    parser.add_argument("--side", nargs=7, metavar=("WAY", "PART", "LOOP", "URL", "NAME", "COUNT", "EXTRA"))
    options = parser.parse_args()
    if options.side:
        way, part, loop, url, name, count, extra = options.side
        bench_delivery.side(tracing_ways("")[way], part, loop, Task(url, name, int(count), int(extra)))
        return
    with tempfile.TemporaryDirectory() as folder, bench_delivery.span_receiver() as receiver:
        calls_table(receiver, count=20_000, rounds=options.rounds)
        if options.calls_only:
            return
        server = NatsServer(Path(folder))
        server.start()
        try:
            messages_table(options, server.url, receiver)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
