"""`bus workflow confirmations`, `approve` and `deny` as a person types them (SEC-3)."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]

AGENT = """
from bus import Agent, Message

publisher = Agent("publisher")


@publisher.on("publish")
async def publish(payload: dict, message: Message) -> None:
    by = await message.confirm("Publish it?", arguments=payload)
    await message.reply("published", {"by": by})
"""


def test_a_person_is_asked_and_answers(tmp_path: Path, start: Start, bus_command: Run) -> None:
    """Shown with its arguments; answered once; the second answer and an unknown id end with 1."""
    (tmp_path / "publishing.py").write_text(AGENT)
    start("bus", "run", "publishing:publisher", until="running publisher")
    assert "nothing waits" in bus_command("workflow", "confirmations").stdout
    assert bus_command("send", "publisher", "publish", '{"text": "hello"}', "--workflow", "w1").returncode == 0
    while not (found := json.loads(bus_command("workflow", "confirmations", "--json").stdout)):
        time.sleep(0.1)
    (one,) = found
    shown = bus_command("workflow", "confirmations", "--workflow", "w1").stdout
    assert "publisher asks" in shown
    assert '{"text":"hello"}' in shown
    assert "waits for a person" in bus_command("trace", "w1").stdout
    approved = bus_command("workflow", "approve", one["id"], "--by", "Ada")
    assert (approved.returncode, "approved Publish it?" in approved.stdout) == (0, True), approved.stderr
    late = bus_command("workflow", "deny", one["id"])
    assert (late.returncode, "nothing was changed" in late.stderr) == (1, True)
    assert bus_command("workflow", "approve", "nothing-1").returncode == 1
    while '"by":"Ada"' not in (
        passed := bus_command("tail", "--workflow", "w1", "--since", "1m", "--no-follow").stdout
    ):
        time.sleep(0.1)
    assert "published" in passed
