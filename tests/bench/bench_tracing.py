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
from bus.delivery.attributes import id_attributes, kind_attributes
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
DELIVERY = Delivery("bus.v1.work.worker.normal.load.work", b"x" * 700, {}, "reply", 1, 1, time.time_ns(), 0)


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


def spans_of(mode: str, receiver: str) -> tuple[Callable[[Envelope], None], list[Telemetry]]:
    """What makes the spans and headers of one message, its send and its process, and the services that do it."""
    variables = {} if mode == "untraced" else {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver, **MODES[mode]}
    os.environ.update(variables)
    sender, receiving = Telemetry("load", namespace="bus"), Telemetry("worker", namespace="bus")
    for name in variables:
        del os.environ[name]
    tracing = DeliveryTracing(receiving, agent="worker", phases={})

    def one(envelope: Envelope) -> None:
        send = sender.start(
            lambda: f"send {envelope.to}.{envelope.type}",
            SpanKind.PRODUCER,
            trace_id=envelope.trace_id,
            parent=None,
            sampling_key=envelope.workflow_id or envelope.trace_id,
            attributes=lambda: kind_attributes("send", envelope, agent=envelope.sender) | id_attributes(envelope),
        )
        headers = send.headers()
        send.end()
        process = tracing.process(DELIVERY._replace(headers=headers), envelope)
        if process.is_recording:
            process.set({"bus.settlement": "ack", "bus.exec_ms": 1.0})
        process.end()

    return one, [sender, receiving]


def nothing(envelope: Envelope) -> None:
    """What the other work has that is not tracing."""
    DELIVERY._replace(headers={})


async def calls_table(receiver: str, *, count: int, rounds: int) -> None:
    """Prints the first table: microseconds of this thread, the modes in turn within each round."""
    envelopes = [
        Envelope(sender="load", to="worker", type="work", workflow_id=f"w-{number}", payload={"number": number})
        for number in range(BATCH)
    ]
    modes = {mode: spans_of(mode, receiver) for mode in MODES}
    works = {"nothing": nothing, **{mode: work for mode, (work, _) in modes.items()}}
    samples: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds * count // BATCH):
        for name, work in works.items():
            started = time.thread_time()
            for envelope in envelopes:
                work(envelope)
            samples[name].append((time.thread_time() - started) * 1e6 / BATCH)
    for _, services in modes.values():
        for service in services:
            await service.close()
    # The best, because what else the machine does can only add to it.
    used = {mode: min(samples[mode]) - min(samples["nothing"]) for mode in MODES}
    print("spans and headers of one message, the calls alone")
    print(f"{'':<24}{'us':>8}{'more than untraced':>22}")
    for mode, us in used.items():
        print(f"{'bus, ' + mode:<24}{us:>8.2f}{us - used['untraced']:>22.2f}", flush=True)


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
        asyncio.run(calls_table(receiver, count=20_000, rounds=options.rounds))
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
