"""`bus rules check` and `bus rules explain` without a bus (SEC-2, OPS-3)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bus.cli.rules import rules_app
from bus.cli.usage import UsageError

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


def run(*arguments: str) -> Any:
    return CliRunner().invoke(rules_app, [*arguments, "--offline"])


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    monkeypatch.setenv("BUS_RULES_FILE", str(path))
    return path


def test_check_tells_slips_and_rules_without_effect(path: Path) -> None:
    """SEC-2."""
    path.write_text(RULES + '[[allow]]\nsource = "intern"\ncapability = "calculator.add"\n')
    good = run("check", str(path))
    assert good.exit_code == 0, good.output
    assert "warning: line 15: allow intern > calculator.add of *: never has an effect: line 6" in good.stdout
    assert "4 rules can be used, 1 warnings; no bus runs" in good.stdout
    told = json.loads(run("check", str(path), "--json").stdout)
    assert (told["ok"], told["rules"], told["compared"]) == (True, 4, False)
    assert [one["line"] for one in told["warnings"]] == [15]


def test_check_fails_for_what_cannot_be_used(path: Path) -> None:
    """SEC-2, OPS-3."""
    path.write_text(RULES + "[[deny]]\nsorce = 'x'\n")
    bad = run("check", str(path))
    assert (bad.exit_code, "rules.toml: line 16: [[deny]]: 'sorce'" in bad.stderr) == (1, True)
    assert json.loads(run("check", str(path), "--json").stdout)["line"] == 16
    assert isinstance(run("check", str(path.with_name("absent"))).exception, UsageError)
    assert isinstance(run("explain", "cli", "calculator.add", "alice").exception, UsageError)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("cli", "calculator.add", "alice"), 0, "yes  cli > calculator.add of alice: allowed by line 2"),
        (("lead", "calculator.add", "alice"), 0, "(for a while)"),
        (("lead", "calculator.add", "bob"), 1, "no rule allows it"),
        (("intern", "calculator.add", "alice"), 1, "denied by line 6"),
        (("cli", "calculator.add", "alice", "--sensitive"), 1, "sensitive, and no rule that allows it names it"),
        (("lead", "calculator.add", "alice", "--sensitive"), 0, "allowed by line 10"),
        (("cli", "calculator.add", "alice", "--for", "intern"), 1, "no   intern > calculator.add of alice"),
    ],
)
def test_explain_says_which_rule_decides(arguments: tuple[str, ...], code: int, says: str) -> None:
    """SEC-2."""
    told = run("explain", *arguments)
    assert (told.exit_code, says in told.stdout) == (code, True), told.output
    whole = json.loads(run("explain", *arguments, "--json").stdout)
    assert whole["allowed"] is (code == 0)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    "arguments", [("cli", "calculator.*", "alice"), ("c l", "calculator.add", "alice"), ("a", "b.c")]
)
def test_explain_takes_whole_names(arguments: tuple[str, ...]) -> None:
    """OPS-3: the last of these has no target, and nobody to ask who offers it."""
    assert isinstance(run("explain", *arguments).exception, UsageError)
