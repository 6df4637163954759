"""The command line at its edges: the version, misspelt variables, large integers, Ctrl-C, and a removed folder."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import nats
import pytest

from bus.testing import NatsServer
from tests.e2e.conftest import ROOT

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]

IDLE = """
from bus import Agent

idle = Agent("idle")

@idle.on("note")
async def note(payload: dict) -> None: ...
"""


def test_version(bus_command: Run) -> None:
    done = bus_command("--version")
    assert done.returncode == 0
    assert re.match(r"envelope-bus(, from a folder| \d+\.\d+)", done.stdout)


def test_misspelt_variables_are_told_by_every_command(bus_command: Run) -> None:
    """Settings are silent about what they do not know; the command is not."""
    for command in (("dead", "ls"), ("doctor",), ("send", "idle", "note", "{}")):
        done = bus_command(*command, env={"BUS_ACK_WAITS": "2", "BUS_ZZZ": "1"})
        assert done.stderr.splitlines()[:2] == [
            "warning: BUS_ACK_WAITS is no setting and has no effect; did you mean BUS_ACK_WAIT_S?",
            "warning: BUS_ZZZ is no setting and has no effect",
        ]
    assert bus_command("dead", "ls").stderr == ""


@pytest.mark.parametrize("number", ["18446744073709551616", "-9223372036854775809", "1" + "0" * 5000])
def test_an_integer_beyond_64_bits_is_refused(number: str, bus_command: Run) -> None:
    """It would silently become a float at the first reader."""
    done = bus_command("send", "idle", "note", "-", stdin=f'{{"n": [1.5, {number}]}}')
    assert done.returncode == 2
    assert "beyond 64 bits; write it as a string" in done.stderr
    edited = bus_command("dead", "edit", "1", "--set", f"payload.n={number[:4000]}")
    assert edited.returncode == 2
    assert "beyond 64 bits" in edited.stderr


@pytest.mark.parametrize("number", ["18446744073709551615", "-9223372036854775808"])
def test_an_integer_of_64_bits_stays_exact(number: str, bus_command: Run) -> None:
    bus_command("send", "idle", "note", f'{{"n": {number}, "text": "{"9" * 30}"}}')
    assert number in bus_command("tail", "--no-follow", "--json").stdout


async def test_doctor_finds_what_no_agent_takes(bus_command: Run, server: NatsServer) -> None:
    """A stranger may publish to an agent's prefix itself, below which every agent listens."""
    bus_command("doctor")
    stranger = await nats.connect(server.url)
    await stranger.jetstream().publish("bus.v1.work.idle", b"{}")
    await stranger.close()
    done = bus_command("doctor")
    assert done.returncode == 1
    assert "1 on bus.v1.work.idle, which no agent takes" in done.stdout
    assert "nats stream purge BUS_WORK --subject bus.v1.work.idle" in done.stdout


@pytest.mark.parametrize("delay_s", [0.1, 0.2, 0.3, 0.5])
def test_ctrl_c_at_the_start_has_no_traceback(delay_s: float, environment: dict[str, str], tmp_path: Path) -> None:
    """Whatever the process is doing, imports included."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bus", "tail"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path,
    )  # fmt: skip
    # Python itself answers with a traceback before any of our code runs.
    while str(ROOT) not in Path(f"/proc/{process.pid}/maps").read_text() and not _has_begun(process.pid):
        assert process.poll() is None
    time.sleep(delay_s)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert "Traceback" not in errors
    assert process.returncode in (0, 130)


def _has_begun(pid: int) -> bool:
    """Whether it has loaded a library of ours or of what we need."""
    return "pydantic_core" in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.parametrize("command", [("up",), ("run", "idle:idle")])
def test_a_removed_store_folder_ends_the_command(
    command: tuple[str, ...], environment: dict[str, str], tmp_path: Path
) -> None:
    """Exit code 3 and one line: the messages are gone, so going on would be a lie."""
    (tmp_path / "idle.py").write_text(IDLE)
    store = tmp_path / "store"
    del environment["BUS_SERVERS"]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "bus", *command],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=environment | {"BUS_STORE_DIR": str(store)}, cwd=tmp_path,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        while "Ctrl-C" not in (line := process.stdout.readline()):
            assert line
        while store.exists():  # the server may write into it meanwhile
            shutil.rmtree(store, ignore_errors=True)
        output, _ = process.communicate(timeout=25)
        assert process.returncode == 3, output
        assert f"{store} was removed while its broker was in use" in output
        assert "Traceback" not in output
    finally:
        process.kill()
        process.communicate()
