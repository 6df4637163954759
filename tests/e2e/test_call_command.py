"""`bus call` and `bus registry`, with the example agents (REG-1, REG-3, OPS-3)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.e2e.conftest import ROOT

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def agents(start: Start) -> None:
    """alice and bob, running."""
    start("bus", "run", "agents.alice:alice", "agents.bob:bob", until="running alice, bob", cwd=ROOT)


@pytest.mark.usefixtures("agents")
def test_call_prints_data_and_tells_failures_by_exit_code(bus_command: Run) -> None:
    good = bus_command("call", "calculator.add", '{"a": 1, "b": "2"}')
    assert (good.returncode, json.loads(good.stdout)) == (0, {"sum": 3.0})
    whole = json.loads(bus_command("call", "echo.repeat", "-", "--json", stdin='{"text": "hi"}').stdout)
    assert (whole["ok"], whole["data"], whole["meta"]["tool_name"]) == (True, {"text": "hi"}, "echo.repeat")


@pytest.mark.usefixtures("agents")
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("calculator.add", '{"a": 1}'), 1, "`b` is missing"),
        (("calculator.ad", "{}"), 1, "did you mean calculator.add"),
        (("calculator.add", "{}", "--version", "x"), 2, "version"),
    ],
)
def test_failures_are_told_by_a_line_and_an_exit_code(
    bus_command: Run, arguments: tuple[str, ...], code: int, says: str
) -> None:
    refused = bus_command("call", *arguments)
    assert refused.returncode == code, refused.stderr
    assert says in refused.stderr
    assert "Traceback" not in refused.stderr


def test_wrong_use_ends_with_2_before_anything_is_connected(bus_command: Run) -> None:
    for arguments, says in (
        (("calculator.add", "{"), "not JSON"),
        (("calculator.add", "{}", "--from", "no good"), "not an agent name"),
    ):
        refused = bus_command("call", *arguments)
        assert (refused.returncode, says in refused.stderr) == (2, True), refused.stderr


@pytest.mark.usefixtures("agents")
def test_registry_lists_shows_and_tests(bus_command: Run) -> None:
    listed = bus_command("registry", "ls").stdout
    assert "calculator.add" in listed
    assert "Repeats a text." in listed
    listed = bus_command("registry", "ls", "echo.r", "--json").stdout
    assert [one["agent"] for one in json.loads(listed)] == ["bob"]
    shown = json.loads(bus_command("registry", "show", "alice").stdout)
    assert shown["announcements"][0]["cards"][0]["name"] == "calculator.add"
    assert bus_command("registry", "show", "nobody").returncode == 1
    tried = bus_command("registry", "test", "calculator.add")
    assert tried.returncode == 0
    assert tried.stdout.startswith("good  calculator.add 1.0.0 of alice")
    assert bus_command("registry", "test", "calculator.ad").returncode == 1


@pytest.mark.usefixtures("agents")
def test_names_are_completed(environment: dict[str, str]) -> None:
    variables = {"_BUS_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "bus call calc"}
    completed = subprocess.run(
        [sys.executable, "-c", "import sys; from bus.cli.main import main; sys.argv = ['bus']; main()"],
        env=environment | variables, capture_output=True, text=True, check=False, timeout=25,
    )  # fmt: skip
    assert "calculator.add" in completed.stdout


@pytest.mark.usefixtures("agents")
def test_the_example_caller(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agents.caller"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
        timeout=25,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "alice offers calculator.add 1.0.0: Adds two numbers." in done.stdout
    assert "sum: {'sum': 3.0}" in done.stdout
    assert "did you mean `text`" in done.stdout


def test_without_a_broker_it_ends_with_3(bus_command: Run) -> None:
    done = bus_command("call", "a.b", "--servers", "nats://127.0.0.1:9", env={"BUS_CONNECT_TIMEOUT_S": "0.5"})
    assert done.returncode == 3, done.stderr
