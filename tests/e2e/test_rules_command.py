"""`bus rules`, `bus audit`, and `bus run --rules` (SEC-2, SEC-6, OPS-3)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]

RULES = """
[[allow]]
source = "cli"
capability = "calculator.*"

[[deny]]
source = "intern"
capability = "*"

[[allow]]
source = ["intern", "lead"]
capability = "calculator.add"
target = "alice"
note = "for a while"
"""


def test_rules_hide_what_may_not_be_called(bus_command: Run, start: Start, tmp_path: Path) -> None:
    """SEC-2: the same words for a forbidden and an absent capability; and a broken edit is found by the doctor."""
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    start("bus", "run", "agents.alice:alice", "--rules", str(path), until="running alice", cwd=ROOT)
    ruled = {"BUS_RULES_FILE": str(path)}
    hidden = bus_command("call", "calculator.add", "{}", "--from", "intern", env=ruled)
    absent = bus_command("call", "calculator.mul", "{}", "--from", "intern", env=ruled)
    assert hidden.returncode == 1
    assert hidden.stderr.replace("calculator.add", "?") == absent.stderr.replace("calculator.mul", "?")
    assert bus_command("registry", "ls", "--from", "intern", env=ruled).stdout == ""
    assert "calculator.add of alice" in bus_command("rules", "explain", "cli", "calculator.add", env=ruled).stdout
    path.write_text("[[allow]]\n")
    doctor = bus_command("doctor", env=ruled)
    assert doctor.returncode == 1
    assert "line 1: [[allow]]: source is missing" in doctor.stdout


def test_the_audit_has_the_truth(bus_command: Run, start: Start, tmp_path: Path) -> None:
    """SEC-6."""
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    start("bus", "run", "agents.alice:alice", "--rules", str(path), until="running alice", cwd=ROOT)
    add = ("call", "calculator.add", '{"a": 1, "b": 2}')
    assert bus_command(*add).returncode == 0
    assert "alice has no capability 'calculator.add'" in bus_command(*add, "--from", "intern").stderr
    assert bus_command(*add, "--from", "intern", env={"BUS_RULES_FILE": str(path)}).returncode == 1
    lines = [json.loads(line) for line in bus_command("audit", "--json").stdout.splitlines()]
    assert [(one["from"], one["to"], one["outcome"]) for one in lines] == [
        ("cli", "alice", "ok"),
        ("intern", "alice", "auth.permission_denied"),
        ("intern", None, "auth.permission_denied"),
    ]
    shown = bus_command("audit", "--denied", "--from", "intern", "--capability", "calculator.*", "--limit", "1")
    head, row = shown.stdout.splitlines()
    assert head.split() == ["TIME", "FROM", "TO", "CAPABILITY", "OUTCOME", "MS", "CALL"]
    assert "intern: denied by line 6" in row
    assert "1 older ones" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("audit", "--code", "nonsense"), "neither ok nor an error code"),
        (("run", "agents.alice:alice", "--rules", "absent.toml"), "absent.toml"),
    ],
)
def test_wrong_use_starts_nothing(bus_command: Run, arguments: tuple[str, ...], says: str) -> None:
    """OPS-3, SEC-2: an agent whose rules cannot be read does not run."""
    refused = bus_command(*arguments)
    assert (refused.returncode, says in refused.stderr, "Traceback" in refused.stderr) == (2, True, False)
