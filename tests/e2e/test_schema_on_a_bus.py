"""`bus schema publish` and `bus schema impact` as a person uses them (SCH-1, SCH-5)."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]

READER = """
from pydantic import BaseModel
from bus import Agent

reader = Agent("reader")

class Note(BaseModel):
    __contract__ = "note@1.0"
    text: str

@reader.on("note")
async def note(payload: Note) -> None: ...
"""
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


@pytest.mark.timeout(90)
def test_impact_names_who_would_break(tmp_path: Path, start: Start, bus_command: Run) -> None:
    """Exit code 1 when somebody breaks; agents that left are named; another major breaks who does not accept it."""
    (tmp_path / "reader.py").write_text(READER)
    new = tmp_path / "new.json"
    new.write_text(json.dumps(SCHEMA))
    nobody = bus_command("schema", "impact", "note", "new.json")
    assert (nobody.returncode, nobody.stdout) == (0, "nobody reads note: no agent here handles it\n")
    running = start("bus", "run", "reader:reader", until="running reader")
    good = bus_command("schema", "impact", "note", "new.json")
    assert (good.returncode, good.stdout) == (0, "safe     reader (1 replica of note@1.0)\n"), good.stderr
    new.write_text(json.dumps({"type": "object", "properties": {}}))
    bad = bus_command("schema", "impact", "note", "new.json", "--json")
    assert bad.returncode == 1
    (found,) = json.loads(bad.stdout)
    assert (found["agent"], found["effect"], found["replicas"]) == ("reader", "breaks", 1)
    assert found["reasons"][0].startswith("text: required property removed: ")  # as `bus schema diff` says it
    other = bus_command("schema", "impact", "another", "new.json")
    assert (other.returncode, other.stdout) == (0, "nobody reads another: no agent here handles it\n")
    major = bus_command("schema", "impact", "note", "new.json", "--version", "2.0")
    assert major.returncode == 1
    assert "it accepts majors 1, not note@2.0" in major.stdout
    running.terminate()
    running.wait(10)
    silent = bus_command("schema", "impact", "note", "new.json")
    assert (silent.returncode, silent.stdout.split(" (")[0]) == (0, "unknown  reader")
    assert bus_command("schema", "impact", "note", "new.json", "--strict").returncode == 1
    for wrong in (["Note", "new.json"], ["note", "absent.json"], ["note", "new.json", "--version", "two"]):
        done = bus_command("schema", "impact", *wrong)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr


@pytest.mark.timeout(90)
def test_publish_is_safe_to_repeat_and_never_overwrites(tmp_path: Path, bus_command: Run) -> None:
    """SCH-1: our own catalogue; released versions only, the same again is fine, another content is refused."""
    shutil.copytree(ROOT / "schemas", tmp_path / "schemas")
    first = bus_command("schema", "publish", "review_request")
    assert first.returncode == 0, first.stdout + first.stderr
    lines = first.stdout.splitlines()
    assert "review_request@1.0: published" in lines
    again = bus_command("schema", "publish")
    assert again.returncode == 0, again.stderr
    assert "review_request@1.0: was there already" in again.stdout.splitlines()
    assert "brief_failed@1.0: published" in again.stdout.splitlines()
    file = tmp_path / "schemas" / "review_request" / "1.0.json"
    file.write_text(file.read_text().replace("Position of", "Place of"))
    changed = bus_command("schema", "publish", "review_request")
    assert changed.returncode == 1
    assert "nothing is published" in changed.stderr
