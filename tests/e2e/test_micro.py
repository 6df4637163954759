"""The official command line of NATS finds our agents (REG-12, ADR-32)."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from bus.testing import NatsServer
from tests.e2e.conftest import ROOT

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]

pytestmark = [pytest.mark.natscli, pytest.mark.timeout(60)]

ALICE = ("bus", "run", "agents.alice:alice")


def nats(server: NatsServer, *arguments: str) -> str:
    """What `nats micro ARGUMENTS` prints."""
    done = subprocess.run(
        [ROOT / "ops" / "nats" / "run", "--server", server.url, "--timeout", "1s", "micro", *arguments],
        capture_output=True, text=True, check=False, timeout=25,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def listed(server: NatsServer, count: int) -> list[dict[str, Any]]:
    """What `nats micro ls` tells of this many replicas. It waits a third of a second after an answer for the next."""
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + 10
    while len(found) != count and time.monotonic() < deadline:
        found = json.loads(nats(server, "ls", "--json"))
    # The program sorts them, but a later name with a lower id comes first too.
    return sorted(found, key=lambda one: (one["name"], one["id"]))


def test_the_nats_program_lists_describes_counts_and_pings(server: NatsServer, bus_command: Run, start: Start) -> None:
    """Every replica answers, also of an agent that only handles messages; counts are those of real calls."""
    start(*ALICE, until="running alice", cwd=ROOT)
    start("bus", "run", "agents.alice:alice", "agents.writer:writer", until="running alice, writer", cwd=ROOT)
    for arguments in ('{"a": 1, "b": 2}', '{"a": 1, "b": 3}', '{"a": 1}'):
        bus_command("call", "calculator.add", arguments)

    found = listed(server, 3)
    assert [f"{one['name']} {one['version']}" for one in found] == ["alice 1.2.0", "alice 1.2.0", "writer 1.2.0"]
    assert len({one["id"] for one in found}) == 3
    writer = found[2]
    assert writer["endpoints"] == []
    assert "draft_request@" in writer["metadata"]["bus.handles"]
    registered = json.loads(bus_command("registry", "show", "alice").stdout)
    assert {one["id"] for one in found[:2]} == {one["instance"] for one in registered["replicas"]}

    (endpoint,) = found[0]["endpoints"]
    card = registered["announcements"][0]["cards"][0]
    assert (endpoint["name"], endpoint["queue_group"]) == ("calculator-add", "alice")
    assert endpoint["subject"] == "bus.v1.call.alice.*.calculator.add"
    assert endpoint["metadata"]["bus.digest"] == card["digest"]
    assert (endpoint["metadata"]["bus.idempotent"], endpoint["metadata"]["bus.sensitive"]) == ("true", "false")
    told = nats(server, "info", "alice", found[0]["id"])
    assert "calculator-add" in told

    counted: list[dict[str, Any]] = json.loads(nats(server, "stats", "alice", "--json"))
    endpoints = [one["endpoints"][0] for one in counted]
    assert [sum(one[name] for one in endpoints) for name in ("num_requests", "num_errors")] == [3, 1]
    assert "tool.validation_failed" in {one["last_error"] for one in endpoints}
    for one in endpoints:
        assert (one["processing_time"] > 0) is (one["num_requests"] > 0)
        assert one["average_processing_time"] * one["num_requests"] <= one["processing_time"]
    assert all(one["started"].endswith("Z") for one in counted)

    pinged = nats(server, "ping", "alice")
    assert {one["id"] for one in found[:2]} == {line.split()[1] for line in pinged.splitlines()}


def test_a_stopped_replica_is_gone_at_once(server: NatsServer, start: Start) -> None:
    """A replica that drains answers no more."""
    first = start(*ALICE, until="running alice", cwd=ROOT)
    start(*ALICE, until="running alice", cwd=ROOT)
    assert len(listed(server, 2)) == 2
    first.terminate()
    first.wait(10)
    assert len(json.loads(nats(server, "ls", "--json"))) == 1


def test_discovery_can_be_switched_off(
    server: NatsServer, bus_command: Run, start: Start, environment: dict[str, str]
) -> None:
    """`BUS_MICRO=0`: the nats program sees nobody, and the bus calls as ever."""
    environment["BUS_MICRO"] = "0"
    start(*ALICE, until="running alice", cwd=ROOT)
    assert json.loads(bus_command("call", "calculator.add", '{"a": 1, "b": 2}').stdout) == {"sum": 3.0}
    done = subprocess.run(
        [ROOT / "ops" / "nats" / "run", "--server", server.url, "--timeout", "1s", "micro", "ls", "--json"],
        capture_output=True, text=True, check=False, timeout=25,
    )  # fmt: skip
    assert "alice" not in done.stdout
    assert "no service instances found" in done.stderr
