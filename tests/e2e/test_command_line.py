"""The command line as a person uses it (DESIGN, section Command line)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nats
import pytest
from typer.testing import CliRunner

from bus import Bus, Draft, Settings
from bus.cli.main import app
from bus.testing import NatsServer

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]

ECHO = """
from pydantic import BaseModel
from bus import Agent, Message

class Note(BaseModel):
    text: str

echo = Agent("echo")

@echo.on("note", phase="execute")
async def note(note: Note, message: Message) -> None:
    await message.reply("noted", {"text": note.text.upper()}, status="success")

@echo.on("silent")
async def silent(payload: dict) -> None: ...
"""


@pytest.fixture
def echo(tmp_path: Path, start: Start) -> subprocess.Popen[str]:
    """A running agent."""
    (tmp_path / "echo.py").write_text(ECHO)
    return start("bus", "run", "echo:echo", until="running echo")


@pytest.mark.usefixtures("echo")
def test_send_and_wait(bus_command: Run, tmp_path: Path) -> None:
    """Reply, completion, refusal, and no answer: each says so and exits as promised."""
    replied = bus_command("send", "echo", "note", '{"text": "hi"}', "--wait")
    assert replied.returncode == 0
    assert json.loads(replied.stdout)["payload"] == {"text": "HI"}
    (tmp_path / "note.json").write_text('{"text": "file"}')
    assert "FILE" in bus_command("send", "echo", "note", "@note.json", "--wait").stdout
    assert "STDIN" in bus_command("send", "echo", "note", "-", "--wait", stdin='{"text": "stdin"}').stdout
    assert "was handled; no reply" in bus_command("send", "echo", "silent", "{}", "--wait").stdout
    refused = bus_command("send", "echo", "note", '{"text": 1}', "--wait")
    assert refused.returncode == 1
    assert "tool.validation_failed" in refused.stderr
    assert "payload.text" in refused.stderr
    lonely = bus_command("send", "nobody", "note", "{}", "--wait", "--timeout", "0.5")
    assert lonely.returncode == 1
    assert "no answer" in lonely.stderr


@pytest.mark.usefixtures("echo")
def test_tail(bus_command: Run) -> None:
    """One readable line a message, or one JSON object a line; filters are exact."""
    bus_command("send", "echo", "note", '{"text": "hi"}', "--workflow", "wf-1", "--wait")
    bus_command("send", "echo", "note", '{"text": "other"}', "--wait")
    lines = bus_command("tail", "--workflow", "wf-1", "--no-follow").stdout.splitlines()
    assert len(lines) == 2
    assert 'cli > echo  note  {"text":"hi"}' in lines[0]
    assert 'echo > cli  noted  [execute success]  {"text":"HI"}' in lines[1]
    objects = [json.loads(line) for line in bus_command("tail", "--no-follow", "--json").stdout.splitlines()]
    assert [one["envelope"]["type"] for one in objects] == ["note", "noted"] * 2
    assert [one["stored_at"] for one in objects] == sorted(one["stored_at"] for one in objects)
    assert bus_command("tail", "--no-follow", "--type", "nothing").stdout == ""


def test_tail_follows(bus_command: Run, start: Start, environment: dict[str, str], tmp_path: Path) -> None:
    """What comes later is shown as it comes; Ctrl-C ends it without noise."""
    environment["PYTHONUNBUFFERED"] = "1"
    follow = subprocess.Popen(
        [sys.executable, "-m", "bus", "tail", "--since", "1h"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path,
    )  # fmt: skip
    try:
        bus_command("send", "nobody", "note", '{"n": 1}')
        assert follow.stdout is not None
        assert '{"n":1}' in follow.stdout.readline()
        follow.send_signal(signal.SIGINT)
        _, errors = follow.communicate(timeout=10)
        assert errors == ""
    finally:
        follow.kill()
        follow.communicate()


@pytest.mark.usefixtures("echo")
async def test_poison_from_a_stranger_is_shown(bus_command: Run, server: NatsServer) -> None:
    """DEL-4, by plain nats-py: each kind is listed with its code and shown with its bytes."""
    stranger = await nats.connect(server.url)
    base = {"version": "1.2", "message_id": "m", "trace_id": "t", "from": "stranger", "to": "echo", "type": "note"}
    for data in (
        b"\x00\x1b[31mgarbage",
        b"{}",
        json.dumps({**base, "version": "7.0"}).encode(),
        json.dumps({**base, "payload": {"text": 5}}).encode(),
    ):
        await stranger.jetstream().publish("bus.v1.work.echo.normal.stranger.note", data)
    await stranger.jetstream().publish(
        "bus.v1.work.echo.normal.stranger.invoice", json.dumps({**base, "type": "invoice"}).encode()
    )
    await stranger.close()
    while len(found := json.loads(bus_command("dead", "ls", "--json").stdout)) < 5:
        pass
    # They are handled side by side, so their letters have no fixed order.
    assert sorted(one["code"] for one in found) == [
        "protocol.malformed",
        "protocol.malformed",
        "protocol.no_handler",
        "protocol.unsupported_version",
        "tool.validation_failed",
    ]
    ids = {one["code"]: str(one["id"]) for one in found}
    (garbage,) = [one["id"] for one in found if "message_id" not in one and "JSON" in one["reason"]]
    table = bus_command("dead", "ls").stdout
    assert len(table.splitlines()) == 6
    assert "1.2" in table
    assert len(bus_command("dead", "ls", "--code", "protocol.malformed", "--agent", "echo").stdout.splitlines()) == 3
    shown = bus_command("dead", "show", str(garbage))
    assert shown.returncode == 0
    assert "bus.v1.work.echo.normal.stranger.note" in shown.stdout
    assert "\x1b" not in shown.stdout
    unsupported = bus_command("dead", "show", ids["protocol.unsupported_version"], "--json").stdout
    assert json.loads(unsupported)["details"]["supported"] == ["1.2"]
    missing = bus_command("dead", "show", "99")
    assert (missing.returncode, missing.stderr) == (1, "error: there is no dead letter 99; bus dead ls lists them\n")


def test_doctor(bus_command: Run, echo: subprocess.Popen[str]) -> None:
    """Good while the agent runs; a stopped agent with waiting messages is wrong, and how to mend it."""
    healthy = bus_command("doctor")
    assert healthy.returncode == 0
    assert "1 replica running" in healthy.stdout
    echo.send_signal(signal.SIGTERM)
    assert echo.wait(10) == 0
    bus_command("send", "echo", "note", "{}")
    sick = bus_command("doctor")
    assert sick.returncode == 1
    assert "no replica is running" in sick.stdout
    assert "bus run MODULE:echo" in sick.stdout
    assert any(one["grade"] == "bad" for one in json.loads(bus_command("doctor", "--json").stdout))


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("send", "a", "note", "{bad"), 2, "not JSON"),
        (("send", "a", "note", "@missing.json"), 2, "missing.json"),
        (("send", "a b", "note", "{}"), 2, "`to`"),
        (("send", "a", "Note", "{}"), 2, "`type`"),
        (("send", "a", "note", "{}", "--from", "a.b"), 2, "a.b"),
        (("send", "a"), 2, "Missing argument"),
        (("run", "nothing"), 2, "MODULE:AGENT"),
        (("run", "nothing:x"), 2, "cannot import"),
        (("tail", "--since", "soon"), 2, "soon"),
        (("dead", "show", "x"), 2, "'id'"),
        (("doctor", "--servers", "nats://127.0.0.1:1"), 3, "127.0.0.1:1"),
        (("nonsense",), 2, "nonsense"),
    ],
)
def test_wrong_use_is_one_clear_line(arguments: tuple[str, ...], code: int, says: str, bus_command: Run) -> None:
    """Exit codes 1, 2 and 3, and never a traceback."""
    done = bus_command(*arguments)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_every_command_has_help_with_an_example() -> None:
    for command in (("up",), ("run",), ("send",), ("tail",), ("trace",), ("dead", "ls"), ("dead", "show"), ("doctor",)):
        shown = CliRunner().invoke(app, [*command, "--help"])
        assert shown.exit_code == 0
        assert f"Example: bus {' '.join(command)}" in shown.output


def test_workers_are_kept_alive(tmp_path: Path, start: Start, bus_command: Run) -> None:
    """`--workers 2`: a killed worker is replaced; SIGTERM stops all."""
    (tmp_path / "echo.py").write_text(ECHO)
    supervisor = start("bus", "run", "echo:echo", "--workers", "2", until="running echo")
    assert supervisor.stderr is not None
    children = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text().split()
    assert len(children) == 2
    os.kill(int(children[0]), signal.SIGKILL)
    while f"worker {children[0]} ended" not in (line := supervisor.stderr.readline()):
        assert line
    while "running echo" not in (line := supervisor.stderr.readline()):
        assert line
    assert "HI" in bus_command("send", "echo", "note", '{"text": "hi"}', "--wait").stdout
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(15) == 0


async def test_tail_ends_quietly_when_its_reader_has_gone(environment: dict[str, str], server: NatsServer) -> None:
    """`bus tail | head -1`: no traceback."""
    async with Bus.connect("me", settings=Settings.load(servers=server.url, work_max_bytes=33554432)) as bus:
        await bus.send_many([Draft("nobody", "note", {"text": "x" * 100}) for _ in range(300)])
    with subprocess.Popen(
        [sys.executable, "-m", "bus", "tail", "--no-follow", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    ) as tail:  # fmt: skip
        assert tail.stdout is not None
        assert tail.stderr is not None
        assert json.loads(tail.stdout.readline())["envelope"]["type"] == "note"
        tail.stdout.close()
        said = tail.stderr.read()
    assert said == ""
