"""`bus workflow replay`, on the real brief (WF-8)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

Run = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).parent.parent.parent


def test_the_agents_of_the_brief_do_the_same_again(
    bus_command: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    """An unchanged agent is the same, exit code 0; a file says the same; a changed one is told apart, exit code 1."""
    made = subprocess.run(
        [sys.executable, "-m", "agents", "brief", "What is handled once?", "README.md", "--sections", "2", "--json",
         "--out", str(tmp_path / "brief.md")],
        cwd=ROOT, env={**environment, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    workflow_id = json.loads(made.stdout)["workflow_id"]
    file = tmp_path / "brief.json"
    saved = bus_command("workflow", "replay", workflow_id, "--save", str(file))
    assert saved.returncode == 0, saved.stderr
    assert "messages" in saved.stdout
    again = bus_command("workflow", "replay", str(file), "agents.reviewer:reviewer")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "reviewer is the same as recorded" in again.stdout
    (tmp_path / "silent.py").write_text(
        "from bus import Agent\n\nwriter = Agent('writer')\n\n\n@writer.on('draft_request')\nasync def write(p): ...\n"
    )
    silent = bus_command("workflow", "replay", str(file), "silent:writer", "--json")
    assert silent.returncode == 1, silent.stderr
    found = json.loads(silent.stdout)
    assert found["counts"]["missing"] >= 1
    assert found["is_same"] is False


def test_what_cannot_be_replayed_is_said(bus_command: Run) -> None:
    """Wrong use is 2, an unknown workflow 1."""
    assert bus_command("workflow", "replay", "nothing", "agents.reviewer:reviewer").returncode == 1
    assert bus_command("workflow", "replay", "nothing").returncode == 2
    assert bus_command("workflow", "replay", "nothing.json", "agents.reviewer:reviewer").returncode == 2
