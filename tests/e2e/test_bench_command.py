"""`bus bench` measures this machine (issue: speed)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_it_measures_every_way(bus_command: Run) -> None:
    done = bus_command("bench", "--messages", "300", "--bytes", "10", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["name"] for row in rows] == [
        "bytes into a stream",
        "messages sent",
        "messages handled",
        "one at a time, to the handler",
        "requests, bare",
        "calls answered",
    ]
    assert all(row["rate_per_s"] > 0 for row in rows)
    assert all(row["p99_ms"] >= row["p50_ms"] > 0 for row in rows[-3:])


def test_a_loop_that_there_is_not_is_wrong_use(bus_command: Run) -> None:
    done = bus_command("bench", "--loop", "trio")
    assert (done.returncode, done.stdout) == (2, "")
    assert "asyncio and uvloop" in done.stderr
