"""Messages a second and CPU a message, publisher and consumer in two processes, side by side with the alternatives.

All ways run in turn, several rounds; the table shows medians and ratios to raw nats-py. Compare the CPU: wall-clock
rates depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from bus.testing.server import NatsServer
from tests.bench.ways import Task, Way, environment, ways

BASE = "raw nats-py"


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one way; CPU in microseconds a message."""

    rate: float
    publish_us: float
    consume_us: float

    @property
    def cpu_us(self) -> float:
        """Both sides together."""
        return self.publish_us + self.consume_us


@contextmanager
def span_receiver() -> Iterator[str]:
    """An OTLP endpoint that reads and forgets."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def side(way: Way, part: str, loop: str, task: Task) -> None:
    """Runs one side in this process and prints its CPU seconds."""
    work = way.publish if part == "publish" else way.consume

    async def run() -> float:
        return await work(task)

    if loop == "uvloop":
        import uvloop

        used = uvloop.run(run())
    else:
        used = asyncio.run(run())
    print(f"cpu {used}", flush=True)


def run_way(way: Way, name: str, loop: str, task: Task, script: str) -> Sample:
    """One run: the consumer first, then the publisher; the clock runs from its first message to the last handled.

    `script` is the bench whose option `--side` knows the way by its name.
    """

    def begin(part: str) -> subprocess.Popen[str]:
        numbers = [str(task.count), str(task.extra_bytes)]
        return subprocess.Popen(
            [sys.executable, script, "--side", name, part, loop, task.url, task.name, *numbers],
            stdout=subprocess.PIPE, text=True, env=environment(way),
        )  # fmt: skip

    def cpu_us(output: str) -> float:
        return float(output.split("cpu ")[1]) * 1e6 / task.count

    sides = []
    for part in ("consume", "publish"):
        sides.append(begin(part))
        output = sides[-1].stdout
        assert output is not None
        while (line := output.readline()) != "ready\n":
            assert line, f"{name}: the {part} side ended"
    started = time.perf_counter()
    output = sides[0].stdout
    assert output is not None
    assert output.readline() == "handled\n", f"{name}: the consume side ended"
    elapsed_s = time.perf_counter() - started
    # What stands in its buffer is lost to `communicate`.
    consumed = output.read()
    sides[0].wait(timeout=600)
    published, _ = sides[1].communicate(timeout=600)
    return Sample(task.count / elapsed_s, cpu_us(published), cpu_us(consumed))


def measure(options: argparse.Namespace, url: str, receiver: str) -> None:
    """Runs all ways in turn and prints the table."""
    names = [name for name in ways(receiver) if not options.only or name in {BASE, *options.only}]
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name in names:
            task = Task(url, f"b{uuid.uuid4().hex[:8]}", options.messages, options.extra_bytes)
            samples[name].append(run_way(ways(receiver)[name], name, options.loop, task, __file__))
    base_cpu = statistics.median(one.cpu_us for one in samples[BASE])
    base_rate = statistics.median(one.rate for one in samples[BASE])
    print(f"{options.loop}, {options.messages} messages, {options.rounds} rounds, medians")
    print(f"{'':<18}{'messages/s':>11}{'of raw':>8}{'publish us':>12}{'consume us':>12}{'CPU us':>9}{'of raw':>8}")
    for name, found in samples.items():
        rate, publish, consume, cpu = (
            statistics.median(values)
            for values in (
                [one.rate for one in found],
                [one.publish_us for one in found],
                [one.consume_us for one in found],
                [one.cpu_us for one in found],
            )
        )
        print(
            f"{name:<18}{rate:>11.0f}{rate / base_rate:>8.2f}{publish:>12.1f}{consume:>12.1f}{cpu:>9.1f}"
            f"{cpu / base_cpu:>8.2f}",
            flush=True,
        )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--extra-bytes", type=int, default=0)
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], default="asyncio")
    parser.add_argument("--only", action="append", help="a way beside raw nats-py; may be repeated")
    parser.add_argument("--side", nargs=7, metavar=("WAY", "PART", "LOOP", "URL", "NAME", "COUNT", "EXTRA"))
    options = parser.parse_args()
    if options.side:
        way, part, loop, url, name, count, extra = options.side
        side(ways("")[way], part, loop, Task(url, name, int(count), int(extra)))
        return
    with tempfile.TemporaryDirectory() as folder, span_receiver() as receiver:
        server = NatsServer(Path(folder))
        server.start()
        try:
            measure(options, server.url, receiver)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
