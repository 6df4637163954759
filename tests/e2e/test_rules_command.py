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


def test_check_tells_slips_and_rules_without_effect(bus_command: Run, tmp_path: Path) -> None:
    """SEC-2."""
    path = tmp_path / "rules.toml"
    path.write_text(RULES + '[[allow]]\nsource = "intern"\ncapability = "calculator.add"\n')
    good = bus_command("rules", "check", "rules.toml", "--offline")
    assert good.returncode == 0, good.stderr
    assert "warning: line 15: allow intern > calculator.add of *: never has an effect: line 6" in good.stdout
    told = json.loads(bus_command("rules", "check", "rules.toml", "--json").stdout)
    assert (told["ok"], told["rules"], told["compared"]) == (True, 4, True)
    assert {one["line"] for one in told["warnings"]} == {2, 6, 10, 15}
    path.write_text(RULES + "[[deny]]\nsorce = 'x'\n")
    bad = bus_command("rules", "check", "rules.toml")
    assert (bad.returncode, "rules.toml: line 16: [[deny]]: 'sorce'" in bad.stderr) == (1, True), bad.stderr
    assert json.loads(bus_command("rules", "check", "rules.toml", "--json").stdout)["line"] == 16
    assert bus_command("rules", "check", "absent.toml").returncode == 2
    refused = bus_command("run", "agents.alice:alice", "--rules", "rules.toml")
    assert refused.returncode == 2
    assert "line 16" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("cli", "calculator.add", "alice"), 0, "yes  cli > calculator.add of alice: allowed by line 2"),
        (("lead", "calculator.add", "alice"), 0, "(for a while)"),
        (("lead", "calculator.add", "bob"), 1, "no rule allows it"),
        (("intern", "calculator.add", "alice"), 1, "denied by line 6"),
        (("cli", "calculator.add", "alice", "--sensitive"), 1, "sensitive, and no rule that allows it names it"),
        (("cli", "calculator.add", "alice", "--for", "intern"), 1, "no   intern > calculator.add of alice"),
        (("cli", "calculator.*", "alice"), 2, "names, not patterns"),
        (("c l i", "calculator.add", "alice"), 2, "no agent"),
    ],
)
def test_explain(bus_command: Run, tmp_path: Path, arguments: tuple[str, ...], code: int, says: str) -> None:
    """SEC-2."""
    (tmp_path / "rules.toml").write_text(RULES)
    told = bus_command("rules", "explain", *arguments, "--offline", env={"BUS_RULES_FILE": "rules.toml"})
    assert told.returncode == code, told.stderr
    assert says in told.stdout + told.stderr


def test_rules_of_a_running_agent_and_the_audit_of_it(bus_command: Run, start: Start, tmp_path: Path) -> None:
    """SEC-2, SEC-6: the same words for a forbidden and an absent capability, and the truth in the audit."""
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    start("bus", "run", "agents.alice:alice", "--rules", str(path), until="running alice", cwd=ROOT)
    ruled = {"BUS_RULES_FILE": str(path)}
    add = ("call", "calculator.add", '{"a": 1, "b": 2}')
    assert bus_command(*add).returncode == 0
    assert "alice has no capability 'calculator.add'" in bus_command(*add, "--from", "intern").stderr
    hidden = bus_command(*add, "--from", "intern", env=ruled)
    absent = bus_command("call", "calculator.mul", "{}", "--from", "intern", env=ruled)
    assert hidden.stderr.replace("calculator.add", "?") == absent.stderr.replace("calculator.mul", "?")
    assert "calculator.add" in bus_command("registry", "ls", env=ruled).stdout
    assert bus_command("registry", "ls", "--from", "intern", env=ruled).stdout == ""
    assert bus_command("registry", "show", "alice", "--from", "intern", env=ruled).returncode == 1
    assert "calculator.add of alice" in bus_command("rules", "explain", "cli", "calculator.add", env=ruled).stdout

    lines = [json.loads(line) for line in bus_command("audit", "--json").stdout.splitlines()]
    told = [(one["from"], one["to"], one["outcome"]) for one in lines]
    assert told == [
        ("cli", "alice", "ok"),
        ("intern", "alice", "auth.permission_denied"),
        ("intern", None, "auth.permission_denied"),
        ("intern", None, "registry.capability_not_found"),
    ]
    table = bus_command("audit", "--denied", "--from", "intern").stdout.splitlines()
    assert table[0].split() == ["TIME", "FROM", "TO", "CAPABILITY", "OUTCOME", "MS", "CALL"]
    assert "intern: denied by line 6" in table[1]
    assert len(table) == 3
    assert "3 older ones" in bus_command("audit", "--limit", "1").stderr
    assert bus_command("audit", "--code", "ok", "--agent", "alice", "--capability", "calculator.*", "--json").stdout
    assert "no call is recorded" in bus_command("audit", "--workflow", "none").stderr
    assert bus_command("audit", "--code", "nonsense").returncode == 2

    path.write_text("[[allow]]\n")
    doctor = bus_command("doctor", env=ruled)
    assert doctor.returncode == 1
    assert "line 1: [[allow]]: source is missing" in doctor.stdout
