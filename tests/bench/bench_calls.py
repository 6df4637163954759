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
from tests.bench.bench_delivery import span_receiver
from tests.bench.call_ways import Task, free_port, measure, ways
from tests.bench.ways import Way, environment

BASE = "raw nats-py"
SLOW = {"MCP SDK": 10, "A2A SDK": 40}
WARM_UP = 200


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one way: calls a second, milliseconds, and CPU microseconds a call of both sides."""

    rate: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


def side(way: str, part: str, task: Task) -> None:
    """Runs one side in this process; the callee until its standard input ends. Both print their CPU seconds."""
    callee, caller = ways()[way]

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
    said, _ = begin("caller").communicate(timeout=600)
    heard, _ = callee.communicate("", timeout=60)
    rate, p50, p99, caller_s = (float(part) for part in said.split("sample ")[1].split())
    callee_s = float(heard.split("cpu ")[1].split()[0]) * task.count / (task.count + min(WARM_UP, task.count))
    return Sample(rate, p50, p99, (caller_s + callee_s) / task.count * 1e6)


def compare(options: argparse.Namespace, url: str, receiver: str) -> None:
    """Runs all ways in turn and prints the table."""
    names = [name for name in ways() if not options.only or name in {BASE, *options.only}]
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name in names:
            count = max(WARM_UP, options.calls // SLOW.get(name, 1))
            samples[name].append(run(name, Task(url, f"b{uuid.uuid4().hex[:8]}", count, free_port()), receiver))
    middle = {
        name: [
            statistics.median(column)
            for column in zip(*((s.rate, s.p50_ms, s.p99_ms, s.cpu_us) for s in found), strict=True)
        ]
        for name, found in samples.items()
    }
    print(f"100 in flight, {options.calls} calls (fewer for the slow ones), {options.rounds} rounds, medians")
    print(f"{'':<16}{'calls/s':>9}{'of raw':>8}{'p50 ms':>9}{'p99 ms':>9}{'of raw':>8}{'CPU us':>9}{'of raw':>8}")
    rate0, _, p0, cpu0 = middle[BASE]
    for name, (rate, p50, p99, cpu) in middle.items():
        print(
            f"{name:<16}{rate:>9.0f}{rate / rate0:>8.2f}{p50:>9.2f}{p99:>9.2f}{p99 / p0:>8.2f}{cpu:>9.1f}"
            f"{cpu / cpu0:>8.2f}",
            flush=True,
        )


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
