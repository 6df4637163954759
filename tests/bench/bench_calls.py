"""Calls a second, 100 in flight, caller and callee in two processes, side by side with the alternatives.

All ways run in turn, several rounds; the table shows medians, and ratios to raw nats-py. Wall-clock rates depend on
what else the machine does: compare inside one run, and the CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from bus.testing.server import NatsServer
from tests.bench import call_ways, http_ways
from tests.bench.bench_delivery import span_receiver
from tests.bench.call_ways import Context, Task, free_port, measure
from tests.bench.ways import Way, environment

BASE = "raw nats-py"
SLOW = {"MCP SDK": 10, "A2A SDK": 40}
WARM_UP = 100
RUN_S = 120
# Callee and caller.
WAYS: dict[str, tuple[Context, Context]] = {
    BASE: (call_ways.raw_callee, call_ways.raw_caller),
    "bus, 1% traced": (call_ways.bus_callee, call_ways.bus_caller),
    "FastStream": (call_ways.faststream_callee, call_ways.faststream_caller),
    "grpc.aio": (call_ways.grpc_callee, call_ways.grpc_caller),
    "MCP SDK": (http_ways.mcp_callee, http_ways.mcp_caller),
    "A2A SDK": (http_ways.a2a_callee, http_ways.a2a_caller),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one way: calls a second, milliseconds, and CPU microseconds a call of each side."""

    rate: float
    p50_ms: float
    p99_ms: float
    caller_us: float
    callee_us: float


def side(way: str, part: str, task: Task) -> None:
    """Runs one side in this process; the callee until its standard input ends. Both print their CPU seconds."""
    callee, caller = WAYS[way]

    async def run() -> None:
        if part == "callee":
            async with callee(task):
                print("ready", flush=True)
                before = time.process_time()
                await asyncio.to_thread(sys.stdin.read)
                print(f"cpu {time.process_time() - before}", flush=True)
            return
        async with caller(task) as ask:
            await measure(ask, min(WARM_UP, task.count))
            before = time.process_time()
            elapsed_s, times = await measure(ask, task.count)
            used = time.process_time() - before
            cuts = statistics.quantiles(times, n=100)
            print(f"sample {task.count / elapsed_s} {cuts[49] * 1000} {cuts[98] * 1000} {used}", flush=True)

    asyncio.run(run())


def run(way: str, task: Task, receiver: str) -> Sample:
    """One run: the callee first, then the caller."""
    traced = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver, "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
              "OTEL_TRACES_SAMPLER_ARG": "0.01"} if way.startswith("bus") else {}  # fmt: skip
    variables = environment(Way(None, None, traced))  # type: ignore[arg-type]

    def begin(part: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, __file__, "--side", way, part, task.url, task.name, str(task.count), str(task.port)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables,
        )  # fmt: skip

    callee = begin("callee")
    assert callee.stdout is not None
    while (line := callee.stdout.readline()) != "ready\n":
        assert line, f"{way}: the callee ended"
    said, _ = begin("caller").communicate(timeout=RUN_S)
    heard, _ = callee.communicate("", timeout=RUN_S)
    assert "sample" in said, f"{way}: the caller failed"
    rate, p50, p99, caller_s = (float(part) for part in said.split("sample ")[1].split())
    callee_s = float(heard.split("cpu ")[1].split()[0]) * task.count / (task.count + min(WARM_UP, task.count))
    return Sample(rate, p50, p99, caller_s / task.count * 1e6, callee_s / task.count * 1e6)


def compare(options: argparse.Namespace, url: str, receiver: str) -> None:
    """Runs all ways in turn, so that all of them see the same machine, and prints the table."""
    names = [name for name in WAYS if not options.only or name in {BASE, *options.only}]
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name in names:
            count = max(2 * WARM_UP, options.calls // SLOW.get(name, 1))
            samples[name].append(run(name, Task(url, f"b{uuid.uuid4().hex[:8]}", count, free_port()), receiver))
    print(f"100 in flight, {options.calls} calls (fewer for the slow ones), {options.rounds} rounds, medians")
    print(
        f"{'':<16}{'calls/s':>9}{'of raw':>8}{'p50 ms':>9}{'p99 ms':>9}{'of raw':>8}"
        f"{'CPU us':>9}{'of raw':>8}{'caller':>8}{'callee':>8}"
    )
    base = samples[BASE]
    for name, found in samples.items():
        rate, p50, p99 = middle(found, "rate"), middle(found, "p50_ms"), middle(found, "p99_ms")
        caller, callee = middle(found, "caller_us"), middle(found, "callee_us")
        cpu, least = caller + callee, middle(base, "caller_us") + middle(base, "callee_us")
        print(
            f"{name:<16}{rate:>9.0f}{rate / middle(base, 'rate'):>8.2f}"
            f"{p50:>9.2f}{p99:>9.2f}{p99 / middle(base, 'p99_ms'):>8.2f}{cpu:>9.1f}"
            f"{cpu / least:>8.2f}{caller:>8.1f}{callee:>8.1f}",
            flush=True,
        )


def middle(samples: list[Sample], field: str) -> float:
    """The median of one field."""
    return float(statistics.median(getattr(one, field) for one in samples))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", help="a way beside raw nats-py; may be repeated")
    parser.add_argument("--side", nargs=6, metavar=("WAY", "PART", "URL", "NAME", "COUNT", "PORT"))
    options = parser.parse_args()
    if options.side:
        way, part, url, name, count, port = options.side
        side(way, part, Task(url, name, int(count), int(port)))
        return
    with tempfile.TemporaryDirectory() as folder, span_receiver() as receiver, NatsServer(Path(folder)) as server:
        compare(options, server.url, receiver)


if __name__ == "__main__":
    main()
