"""`bus dead` as a person uses it: list, count, show, edit, retry, drop (DEL-4)."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nats
import pytest
from typer.testing import CliRunner

from bus import Bus, DeadLetter
from bus.cli.main import app
from bus.testing import NatsServer

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]

ECHO = """
from pydantic import BaseModel
from bus import Agent, Message

class Note(BaseModel):
    text: str
    items: list[int] = []

echo = Agent("echo")

@echo.on("note")
async def note(note: Note, message: Message) -> None:
    await message.reply("noted", {"text": note.text.upper(), "attempt": message.attempt, "items": note.items})
"""
BASE = {"version": "1.2", "trace_id": "t", "from": "stranger", "to": "echo", "type": "note"}
SUBJECT = "bus.v1.work.echo.normal.stranger.note"


@pytest.fixture
def echo(tmp_path: Path, start: Start) -> subprocess.Popen[str]:
    """A running agent."""
    (tmp_path / "echo.py").write_text(ECHO)
    return start("bus", "run", "echo:echo", until="running echo")


@pytest.fixture
async def bus(server: NatsServer) -> AsyncIterator[Bus]:
    """A client in this process, which sees faster than a command what the commands did."""
    async with Bus.connect("observer", servers=server.url, work_max_bytes=32 << 20) as one:
        yield one


async def listed(bus: Bus, count: int) -> list[DeadLetter]:
    """The dead letters, once there are so many."""
    while len(found := [one async for one in bus.dead_letters.list()]) < count:
        await asyncio.sleep(0.05)
    return found


async def poison(server: NatsServer, *bodies: bytes) -> None:
    stranger = await nats.connect(server.url)
    for body in bodies:
        await stranger.jetstream().publish(SUBJECT, body)
    await stranger.close()


def envelope(id: str, payload: Any) -> bytes:
    return json.dumps({**BASE, "message_id": id, "payload": payload}).encode()


async def replies(bus: Bus) -> list[Any]:
    """What the agent answered, once it did."""
    begin = datetime.fromtimestamp(0, UTC)
    while True:
        seen = [one async for one in bus.watch(type="noted", since=begin, follow=False)]
        if seen:
            return [one.envelope.payload for one in seen if one.envelope is not None]
        await asyncio.sleep(0.05)


@pytest.mark.usefixtures("echo")
async def test_list_and_count(bus_command: Run, bus: Bus, server: NatsServer) -> None:
    """Counted by agent, code and type; filtered by an alias of the code."""
    await poison(server, envelope("a", {"text": 1}), envelope("b", {"text": 2}), b'{"version": "1.2", oops')
    await listed(bus, 3)
    table = bus_command("dead", "ls", "--group").stdout.splitlines()
    # They are handled side by side, so which has the newest id is not fixed.
    assert [[line.split()[0], *line.split()[2:]] for line in table[1:]] == [
        ["2", "echo", "tool.validation_failed", "note"],
        ["1", "echo", "protocol.malformed", "note"],
    ]
    groups = json.loads(bus_command("dead", "ls", "--group", "--json", "--code", "payload.invalid").stdout)
    assert [(one["count"], one["type"]) for one in groups] == [(2, "note")]
    assert len(json.loads(bus_command("dead", "ls", "--json", "--type", "note").stdout)) == 3


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("echo")
async def test_edit_by_set_and_retry(bus_command: Run, bus: Bus, server: NatsServer) -> None:
    """Mended by --set, sent again, handled; a wrong edit names the path and leaves the letter."""
    await poison(server, envelope("a", {"text": 1}))
    await listed(bus, 1)
    refused = bus_command("dead", "edit", "1", "--set", "extensions.hops=-1")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: `extensions.hops` must be")
    done = bus_command(
        "dead",
        "edit",
        "1",
        "--set",
        'payload.text="one"',
        "--set",
        "payload.items=[6]",
        "--set",
        "payload.items.0=7",
        "--json",
    )
    assert json.loads(done.stdout) == {"id": 2, "edited_from": 1}
    assert bus_command("dead", "edit", "1", "--set", "payload.text=2").returncode == 1
    assert "edited    from 1" in bus_command("dead", "show", "2").stdout
    assert bus_command("dead", "show", "2", "--original").stdout == envelope("a", {"text": 1}).decode()
    retried = bus_command("dead", "retry", "2")
    assert (retried.returncode, retried.stdout) == (0, "1 sent again, 0 cannot be\n")
    assert await replies(bus) == [{"text": "ONE", "attempt": 2, "items": [7]}]
    assert await listed(bus, 0) == []


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("echo")
async def test_edit_in_an_editor(bus_command: Run, bus: Bus, server: NatsServer, tmp_path: Path) -> None:
    """JSON comes indented, garbage as it is; refused work is not lost; a failed editor changes nothing."""
    await poison(server, b'{"version": "1.2", oops')
    await listed(bus, 1)
    seen = tmp_path / "seen"
    editor = tmp_path / "editor"
    editor.write_text(f'#!/bin/sh\ncp "$2" {seen}\nprintf %s "$TEXT" > "$2"\nexit $1\n')
    editor.chmod(0o755)

    def edit(id: int, text: str, ends: int = 0) -> subprocess.CompletedProcess[str]:
        return bus_command("dead", "edit", str(id), env={"EDITOR": f"{editor} {ends}", "TEXT": text})

    mended = edit(1, json.dumps(json.loads(envelope("c", {"text": "c"})), indent=4))
    assert (mended.returncode, mended.stdout) == (0, "dead letter 1 is now 2; bus dead retry 2 sends it again\n")
    assert seen.read_bytes() == b'{"version": "1.2", oops'
    assert "nothing changed" in edit(2, envelope("c", {"text": "c"}).decode()).stdout
    assert seen.read_text().startswith('{\n  "version": "1.2",\n')
    failed = edit(2, "{}", ends=3)
    assert (failed.returncode, "ended with 3" in failed.stderr) == (2, True)
    bad = edit(2, '{"version": "1.2"}')
    assert bad.returncode == 2
    hint, problem = bad.stderr.splitlines()
    assert "`message_id`" in problem
    assert Path(hint.removeprefix("your text is in ")).read_text() == '{"version": "1.2"}'
    assert [one.id for one in await listed(bus, 1)] == [2]
    assert "cannot run the editor" in bus_command("dead", "edit", "2", env={"EDITOR": "/no/such"}).stderr


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("echo")
async def test_mass_retry_says_what_it_does(bus_command: Run, bus: Bus, server: NatsServer) -> None:
    """A dry run changes nothing; what cannot be sent again stays and makes the exit code 1."""
    await poison(server, *(envelope(f"m{n}", {"text": n}) for n in range(5)))
    before = await listed(bus, 5)
    stranger = await nats.connect(server.url)
    await stranger.jetstream().publish("bus.v1.dead.echo.tool-timeout", b"not from a work subject")
    await stranger.close()
    dry = bus_command("dead", "retry", "--all", "--dry-run")
    assert dry.stdout.splitlines()[-1] == "6 would be sent again; nothing was done"
    assert len(await listed(bus, 6)) == 6
    mass = bus_command("dead", "retry", "--all", "--agent", "echo", "--json", "--rate", "200")
    *lines, summary = [json.loads(line) for line in mass.stdout.splitlines()]
    assert mass.returncode == 1
    assert summary == {"retried": 5, "failed": 1, "left": 0}
    assert [line["id"] for line in lines if "seq" in line] == [one.id for one in before]
    assert "no work subject of echo" in mass.stderr
    again = await listed(bus, 6)
    attempts = {read.message_id: one.attempts for one in again if (read := one.envelope()) is not None}
    assert attempts == {f"m{n}": 2 for n in range(5)}


@pytest.mark.timeout(60)
async def test_a_killed_mass_retry_goes_on(
    bus_command: Run, bus: Bus, server: NatsServer, environment: dict[str, str], tmp_path: Path, start: Start
) -> None:
    """SIGKILL in the middle, then again: each message is sent again exactly once."""
    (tmp_path / "echo.py").write_text(ECHO)
    agent = start("bus", "run", "echo:echo", until="running echo")
    count = 60
    await poison(server, *(envelope(f"m{n}", {"text": n}) for n in range(count)))
    await listed(bus, count)
    agent.send_signal(signal.SIGTERM)
    agent.wait(10)
    mass = subprocess.Popen(
        [sys.executable, "-m", "bus", "dead", "retry", "--all", "--json", "--rate", "40"],
        stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert mass.stdout is not None
    for _ in range(10):
        mass.stdout.readline()
    mass.kill()
    mass.communicate()
    left = len(await listed(bus, 1))
    assert 0 < left <= count - 10
    assert bus_command("dead", "retry", "--all", "--rate", "1000").returncode == 0
    client = await nats.connect(server.url)
    subjects = (await client.jetstream().stream_info("BUS_WORK", subjects_filter=SUBJECT)).state.subjects
    await client.close()
    assert subjects == {SUBJECT: count}


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("echo")
async def test_drop_asks_before_all(bus_command: Run, bus: Bus, server: NatsServer) -> None:
    await poison(server, b"one", b"two", b"three")
    await listed(bus, 3)
    assert bus_command("dead", "drop", "1").stdout == "1 dropped\n"
    gone = bus_command("dead", "drop", "1")
    assert (gone.returncode, gone.stderr) == (1, "error: there is no dead letter 1; bus dead ls lists them\n")
    for answer in ("n\n", ""):
        refused = bus_command("dead", "drop", "--all", stdin=answer)
        assert refused.returncode == 1
        assert "Drop 2 dead letters for good?" in refused.stderr
        assert "nothing was dropped" in refused.stderr
        assert len(await listed(bus, 2)) == 2
    assert bus_command("dead", "drop", "--all", stdin="y\n").stdout == "2 dropped\n"
    await poison(server, b"four")
    await listed(bus, 1)
    assert bus_command("dead", "drop", "--all", "--yes", "--json").stdout == '{"dropped":1}\n'
    assert bus_command("dead", "ls").stdout == "no dead letters\n"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("retry",), 2, "ids, or --all"),
        (("retry", "1", "--all"), 2, "ids, or --all"),
        (("drop", "1", "--agent", "x"), 2, "go with --all"),
        (("retry", "99"), 1, "no dead letter 99"),
        (("retry", "99999999999999999999"), 1, "no dead letter"),
        (("edit", "99", "--set", "payload=1"), 1, "no dead letter 99"),
        (("edit", "1", "--set", "payload"), 2, "PATH=JSON"),
        (("edit", "1", "--set", "payload.x=hello"), 2, 'payload.x="hello"'),
        (("ls", "--code", "payload.wrong"), 2, "error table"),
        (("ls", "--agent", "a.*"), 2, "agent name"),
        (("retry", "--all", "--rate", "0"), 2, "--rate"),
        (("ls", "--servers", "nats://127.0.0.1:1"), 3, "127.0.0.1:1"),
    ],
)
def test_wrong_use_is_one_clear_line(arguments: tuple[str, ...], code: int, says: str, bus_command: Run) -> None:
    done = bus_command("dead", *arguments)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_every_command_has_help_with_an_example() -> None:
    for command in ("ls", "show", "edit", "retry", "drop"):
        shown = CliRunner().invoke(app, ["dead", command, "--help"])
        assert shown.exit_code == 0
        assert f"Example: bus dead {command}" in shown.output
