"""`bus trace` as a person uses it (OBS-6)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(60)  # each runs many processes

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]

AGENTS = """
from bus import Agent, Message, RetryLater

first, second = Agent("first"), Agent("second")

@first.on("go", phase="plan")
async def go(payload: dict, message: Message) -> None:
    await message.send("second", "good", {}, phase="execute")
    await message.send("second", "again", {"text": "\\u202e\\x1b[31m"}, phase="execute")
    await message.send("second", "bad", {}, phase="review")

@second.on("good")
async def good(payload: dict) -> None: ...

@second.on("again")
async def again(payload: dict, message: Message) -> None:
    raise RetryLater(3600, "\\x1b]0;the model is away\\x07")

@second.on("bad")
async def bad(payload: dict) -> None:
    raise ValueError("no good")
"""


@pytest.fixture
def workflow(tmp_path: Path, start: Start, bus_command: Run) -> str:
    """A workflow of which one message was handled, one is tried again in an hour, and one is dead."""
    (tmp_path / "two.py").write_text(AGENTS)
    start("bus", "run", "two:first", "two:second", until="running first, second")
    id = "0193a1b2-c3d4-7000-8000-0c1d2e3f4a5b"
    assert bus_command("send", "first", "go", "{}", "--workflow", id).returncode == 0
    while True:
        done = bus_command("trace", id, "--json")
        steps = json.loads(done.stdout)["steps"] if done.returncode == 0 else []
        if {step["state"] for step in steps if step["type"] in ("again", "bad")} == {"retrying", "dead"}:
            return id


def test_why_is_it_stuck(workflow: str, bus_command: Run) -> None:
    """The header says what it waits for and why; nothing hostile, and no colour, reaches a pipe."""
    done = bus_command("trace", workflow)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"workflow {workflow}  running for ")
    assert lines[1].startswith("waits for second: 1 again, failing for ")
    assert "again in 59 min" in lines[1] or "again in 1 h" in lines[1]
    assert "the model is away" in lines[1]
    assert lines[1].endswith("a replica is running")
    assert "dead letter 1: second bad: tool.execution_failed: ValueError: no good" in lines
    (good,) = [line for line in lines if "good  first > second" in line]
    assert "execute" in good
    assert "worked" in good
    assert not [char for char in done.stdout if not char.isprintable() and char != "\n"]


def test_json_has_the_documented_shape(workflow: str, bus_command: Run) -> None:
    told = json.loads(bus_command("trace", workflow, "--json").stdout)
    assert sorted(told) == [
        "began_at", "by_agent", "by_phase", "ended_at", "notes", "read_at", "status", "steps", "total", "waits",
        "wall_ms", "workflow_id",
    ]  # fmt: skip
    assert (told["workflow_id"], told["status"], told["ended_at"]) == (workflow, "open", None)
    assert told["total"]["dead_letters"] == 1
    (again,) = [step for step in told["steps"] if step["type"] == "again"]
    assert again["attempts"][0]["error"]["code"] == "tool.execution_failed"
    assert told["steps"][again["parent"]]["type"] == "go"


def test_a_beginning_is_enough_and_an_unknown_id_is_one_line(workflow: str, bus_command: Run) -> None:
    bus_command("send", "first", "nothing", "{}", "--workflow", "other-1")
    bus_command("send", "first", "nothing", "{}", "--workflow", "other-2")
    assert workflow in bus_command("trace", workflow[:9]).stdout
    several = bus_command("trace", "other")
    assert (several.returncode, several.stdout) == (1, "")
    assert several.stderr.startswith("error: 2 workflows begin with other")
    near = bus_command("trace", "other-3")
    assert near.returncode == 1
    assert "near it: other-2, other-1" in near.stderr or "near it: other-1, other-2" in near.stderr
    assert len(near.stderr.splitlines()) == 1
