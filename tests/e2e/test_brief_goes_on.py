"""The brief survives the death of everything, keeps to a budget, and ends when told to (WF-2, WF-5, WF-6, WF-7)."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bus.testing import NatsServer

ROOT = Path(__file__).parents[2]
GOAL = "What happens to a message when a worker is killed?"
SOURCES = [str(ROOT / name) for name in ("README.md", "ops/README.md", "schemas/README.md")]
Run = Callable[..., subprocess.CompletedProcess[str]]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "agents", "brief", *arguments]


@pytest.fixture
def brief(environment: dict[str, str], tmp_path: Path) -> Run:
    """Runs `python -m agents brief ARGUMENTS` to its end."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*arguments), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=28, check=False
        )

    return run


def workflows(bus_command: Run) -> list[dict[str, Any]]:
    listed = bus_command("workflow", "ls", "--json")
    return list(json.loads(listed.stdout)["workflows"]) if listed.returncode == 0 else []


def begun(bus_command: Run, process: subprocess.Popen[bytes]) -> str:
    """Waits until the workflow has a record; its id."""
    while not (found := workflows(bus_command)):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    return str(found[0]["id"])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_after_the_death_of_everything_the_brief_is_the_same(
    seed: int, brief: Run, bus_command: Run, server: NatsServer, environment: dict[str, str], tmp_path: Path
) -> None:
    """WF-2: client, agents and broker die at a random moment; `--resume` makes the same bytes."""
    began = time.monotonic()
    undisturbed = brief(GOAL, *SOURCES, "--out", "undisturbed.md")
    whole_s = time.monotonic() - began
    assert undisturbed.returncode == 0, undisturbed.stderr
    before = {one["id"] for one in workflows(bus_command)}
    process = subprocess.Popen(
        command(GOAL, *SOURCES, "--out", "killed.md"), cwd=tmp_path, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    # The first half of it are imports.
    time.sleep(whole_s * random.Random(seed).uniform(0.5, 0.95))
    server.kill()
    process.kill()
    process.wait()
    server.start()
    new = [one["id"] for one in workflows(bus_command) if one["id"] not in before]
    if not new:
        assert brief("--resume", "unknown").returncode == 1
        return
    resumed = brief("--resume", new[0], "--out", "resumed.md")
    if "had asked the planner" in resumed.stderr:
        assert resumed.returncode == 1
        return
    assert resumed.returncode == 0, resumed.stderr
    assert (tmp_path / "resumed.md").read_bytes() == (tmp_path / "undisturbed.md").read_bytes()
    again = brief("--resume", new[0], "--out", "-")
    assert again.stdout.encode() == (tmp_path / "undisturbed.md").read_bytes()
    shown = json.loads(bus_command("workflow", "show", new[0], "--json").stdout)
    assert shown["status"] == "success"


def test_ctrl_c_ends_it_for_everybody(
    bus_command: Run, brief: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    """WF-7: the record is cancelled, and so is whoever wants to go on."""
    # Nobody plans, so that it waits.
    process = subprocess.Popen(
        command(GOAL, *SOURCES, "--remote", "--out", "cut.md"), cwd=tmp_path, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    workflow_id = begun(bus_command, process)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert json.loads(bus_command("workflow", "show", workflow_id, "--json").stdout)["status"] == "cancelled"
    assert not (tmp_path / "cut.md").exists()
    refused = brief("--resume", workflow_id)
    assert (refused.returncode, "is over (cancelled)" in refused.stderr) == (1, True)


def test_a_budget_stops_it_and_says_so(brief: Run, bus_command: Run) -> None:
    """WF-6: one line, exit code 1, and the record says why."""
    stopped = brief(GOAL, *SOURCES, "--budget-messages", "3")
    assert stopped.returncode == 1
    assert stopped.stderr.startswith("error: the budget is used up")
    assert stopped.stderr.count("\n") == 1
    assert [one["status"] for one in workflows(bus_command)] == ["error"]
    assert brief(GOAL, *SOURCES, "--budget-messages", "100", "--budget-seconds", "100").returncode == 0


def test_wrong_uses_of_resume_are_refused(brief: Run) -> None:
    """One line, exit code 2, or 1 for what is not there."""
    for arguments, code, says in (
        (("--resume", "nothing"), 1, "is not known"),
        (("--resume", "nothing", "--budget-messages", "3"), 2, "goes on with the goal"),
        ((GOAL, "README.md", "--resume", "nothing"), 2, "goes on with the goal"),
        ((GOAL,), 2, "PATH"),
    ):
        done = brief(*arguments)
        assert (done.returncode, says in done.stderr) == (code, True), done.stderr
