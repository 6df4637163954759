"""`bus workflow` as a person uses it, with the README's own example (WF-1, WF-2, WF-3)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_documents import blocks

pytestmark = pytest.mark.timeout(60)  # each runs many processes

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def workflow(tmp_path: Path, start: Start, environment: dict[str, str]) -> str:
    """The README's workflow, finished; its agents still run."""
    (agents,), (client,) = blocks("python workflow"), blocks("python workflow client")
    (tmp_path / "letters.py").write_text(agents)
    start("bus", "run", "letters:clerk", "letters:scribe", until="running clerk, scribe")
    imports, body = client.split("\n\n", 1)
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    (tmp_path / "client.py").write_text(
        f"import asyncio\n{imports}\nasync def main():\n{indented}\nasyncio.run(main())"
    )
    done = subprocess.run(
        [sys.executable, "client.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=25
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def shown(bus_command: Run, workflow: str) -> dict[str, Any]:
    done = bus_command("workflow", "show", workflow, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_commands_of_the_readme(workflow: str, bus_command: Run) -> None:
    """List, show by the beginning of the id, roll back to a phase; the work runs again in the new branch."""
    (block,) = blocks("sh workflow")
    assert [line.split("  #")[0].strip() for line in block.splitlines()] == [
        "bus workflow ls",
        "bus workflow show WORKFLOW_ID",
        "bus workflow rollback WORKFLOW_ID plan",
    ]
    listed = bus_command("workflow", "ls")
    assert listed.returncode == 0, listed.stderr
    assert re.search(rf"^{workflow}  letter  success  write  .* ago$", listed.stdout, re.M), listed.stdout
    assert listed.stdout.splitlines()[-1] == "1 success"
    show = bus_command("workflow", "show", workflow[:20])
    assert show.returncode == 0, show.stderr
    for said in (
        rf"workflow {workflow}  letter  success took ",
        r"revision \d+, last changed .* ago by me \(client\)",
        "messages: 3 handled, 0 waiting, 0 dead, 0 set aside",
        r"phase       plan  took .*, began \d\d:\d\d:\d\d",
        r"phase       write  running for",
        r"checkpoint  plan  .* ago, branch 0, 1 document, by clerk, handling order",
        r"\d\d:\d\d:\d\d    ended: success  by me \(client\)",
    ):
        assert re.search(said, show.stdout), (said, show.stdout)
    done = bus_command("workflow", "rollback", workflow, "plan")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"rolled {workflow} back to plan: branch 1, 1 document restored, 1 message sent again\n"
    deadline = time.monotonic() + 15
    while (found := shown(bus_command, workflow))["messages"]["handled"] < 6:
        assert time.monotonic() < deadline, found
    sent = bus_command("send", "scribe", "part", '{"part": "greeting"}', "--workflow", workflow, "--wait")
    assert sent.returncode == 0, sent.stderr
    assert shown(bus_command, workflow)["messages"]["set_aside"] == 0
    assert (found["status"], found["branch"], found["counts"]["rollbacks"]) == ("running", 1, 1)
    assert bus_command("workflow", "ls", "--status", "success").stdout.splitlines()[-1] == "1 running"


def test_what_is_not_there(bus_command: Run, workflow: str) -> None:
    """Exit codes: 1 for no, 2 for wrong use; one line says what to do."""
    for words, code, says in (
        (("show", "nothing"), 1, "there is no record of the workflow nothing; `bus workflow ls` lists"),
        (("rollback", workflow, "never"), 1, "there is no such checkpoint; there are plan. Nothing was changed"),
        (("ls", "--status", "done"), 2, "'done' is not the status of a workflow"),
    ):
        done = bus_command("workflow", *words)
        assert (done.returncode, says in done.stderr) == (code, True), done.stderr
        assert "Traceback" not in done.stderr
    listed = json.loads(bus_command("workflow", "ls", "--json").stdout)
    assert [one["id"] for one in listed["workflows"]] == [workflow]
    assert listed["counts"] == {"running": 0, "paused": 0, "success": 1, "error": 0, "cancelled": 0}
