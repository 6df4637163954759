"""`bus call --no-wait` and `bus task`, in processes of their own (REG-8)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]

SOURCE = """
import asyncio
from bus import Agent

desk = Agent("desk")

@desk.capability("desk.wait", description="Waits.", long=True)
async def wait(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"
"""


@pytest.mark.timeout(60)
def test_a_task_from_its_call_to_its_end(tmp_path: Path, start: Start, bus_command: Run) -> None:
    """REG-8: asked for here, shown, waited for and cancelled from other processes, with exit codes."""
    (tmp_path / "desk.py").write_text(SOURCE)
    start("bus", "run", "desk:desk", until="running desk")
    quick = bus_command("call", "desk.wait", '{"seconds": 0}').stdout.strip()
    slow = json.loads(bus_command("call", "desk.wait", '{"seconds": 60}', "--no-wait", "--json").stdout)["task_id"]
    result = bus_command("task", "result", quick)
    assert (result.returncode, json.loads(result.stdout)) == (0, "done")
    shown = json.loads(bus_command("task", "show", slow).stdout)
    assert (shown["state"], shown["from"], shown["attempts"]) == ("running", "cli", 1)
    finished = bus_command("task", "cancel", quick)
    assert (finished.returncode, "nothing changed" in finished.stderr) == (1, True)
    assert bus_command("task", "cancel", slow).stdout == f"{slow} is cancelled\n"
    cancelled = bus_command("task", "result", slow)
    assert (cancelled.returncode, "tool.cancelled" in cancelled.stderr) == (1, True)
    listed = bus_command("task", "ls", "--state", "cancelled", "--agent", "desk").stdout
    assert (slow in listed, quick in listed) == (True, False)


def test_what_is_no_task_is_told_in_a_line(bus_command: Run) -> None:
    """REG-8: unknown ids end with 1, wrong words with 2."""
    for arguments, code, says in (
        (("show", "no-such"), 1, "there is no task 'no-such'"),
        (("cancel", "no such"), 1, "there is no task 'no such'"),
        (("ls", "--state", "asleep"), 2, "none of queued"),
    ):
        done = bus_command("task", *arguments)
        assert (done.returncode, says in done.stderr) == (code, True), done.stderr
        assert "Traceback" not in done.stderr
