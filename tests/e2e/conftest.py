"""End to end: the command line in processes of its own, with a store folder of each test's own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bus.testing import NatsServer

ROOT = Path(__file__).parents[2]


@pytest.fixture
def server(bus_own_server: NatsServer) -> NatsServer:
    """A server of the test's own."""
    return bus_own_server


@pytest.fixture
def environment(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Variables under which the commands use that server."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BUS_", "OTEL_"))}
    return {
        **kept,
        "BUS_SERVERS": server.url,
        "BUS_ACK_WAIT_S": "1",
        "BUS_WORK_MAX_BYTES": "33554432",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "200",
    }


@pytest.fixture
def bus_command(environment: dict[str, str], tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `bus ARGUMENTS` to its end."""

    def run(*arguments: str, stdin: str = "", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "bus", *arguments],
            input=stdin, capture_output=True, text=True, env=environment | (env or {}),
            cwd=tmp_path, timeout=25, check=False,
        )  # fmt: skip

    return run


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a command, waits for a line of its standard error that holds `until`, and ends it after the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, until: str, cwd: Path = tmp_path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=cwd,
        )  # fmt: skip
        started.append(process)
        assert process.stderr is not None
        lines = []
        while until not in (line := process.stderr.readline()):
            lines.append(line)
            assert line, f"{arguments} ended: {''.join(lines)}"
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
