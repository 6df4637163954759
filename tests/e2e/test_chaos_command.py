"""`bus chaos` breaks messages on purpose and says what the agent did (DEL-4)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]

AGENTS = """
from pydantic import BaseModel
from bus import Agent

class Note(BaseModel):
    text: str

careful, careless = Agent("careful"), Agent("careless")

@careful.on("note")
async def note(note: Note) -> None: ...

@careless.on("note")
async def any_note(payload: dict) -> None:
    payload["text"].upper()
"""

# What the issue asks for, and what becomes of each.
WANTED = {
    "good": "handled once",
    "missing field": "dead letter protocol.malformed",
    "wrong type": "dead letter protocol.malformed",
    "wrong version": "dead letter protocol.unsupported_version",
    "duplicate": "handled once",
    "late": "dead letter protocol.expired",
    "reordered": "handled once",
    "large": "handled once",
    "huge": "refused protocol.too_large",
    "deep": "dead letter protocol.malformed",
    "unknown fields": "handled once",
    "not JSON": "dead letter protocol.malformed",
    "forged": "dead letter auth.unverified_sender",
    "unknown type": "dead letter protocol.no_handler",
    "slow broker": "handled once",
    "payload: other kind": "dead letter tool.validation_failed",
    "payload: missing field": "dead letter tool.validation_failed",
    "payload: wrong type": "dead letter tool.validation_failed",
    "payload: unknown field": "handled once",
}


@pytest.fixture(autouse=True)
def _agents(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(AGENTS)


def test_an_agent_that_does_everything_right(bus_command: Run, tmp_path: Path) -> None:
    """As JSON; the payload from a file; the broker of the environment is not touched."""
    (tmp_path / "note.json").write_text('{"text": "hi"}')
    done = bus_command("chaos", "mine:careful", "--type", "note", "--payload", "@note.json", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {one["message"]: one["did"] for one in found} == WANTED
    assert all(one["good"] for one in found)
    assert "careful" not in bus_command("doctor").stdout


def test_an_agent_that_trusts_its_input(bus_command: Run) -> None:
    """Its crashes are named; everything that the bus catches for it is good."""
    done = bus_command("chaos", "mine:careless", "--type", "note", "--payload", '{"text": "hi"}')
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    bad = [line for line in done.stdout.splitlines() if "BAD" in line]
    assert len(bad) == 3
    assert all(line.startswith("payload: ") and "tool.execution_failed" in line for line in bad)


def test_wrong_use_is_one_line(bus_command: Run) -> None:
    done = bus_command("chaos", "mine:careful", "--type", "letter", "--payload", "{}")
    assert (done.returncode, done.stderr) == (2, "error: careful has no handler for 'letter'; it handles note\n")
