"""`bus call --stream`, and the streaming example of the README (REG-7, EDGE-2)."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]

README = (ROOT / "README.md").read_text("utf-8")


@pytest.fixture
def bob(start: Start) -> subprocess.Popen[str]:
    """bob, running."""
    return start("bus", "run", "agents.bob:bob", until="running bob", cwd=ROOT)


@pytest.mark.usefixtures("bob")
def test_one_line_a_chunk_or_with_json_one_line_an_event(bus_command: Run) -> None:
    good = bus_command("call", "echo.spell", '{"text": "hi!", "pause_s": 0}', "--stream")
    assert (good.returncode, good.stdout.splitlines()) == (0, ['"h"', '"i"', '"!"'])
    events = bus_command("call", "echo.spell", '{"text": "hi", "pause_s": 0}', "--stream", "--json").stdout
    told = [json.loads(line) for line in events.splitlines()]
    assert [one["type"] for one in told] == ["agent_start", "chunk", "chunk", "agent_end"]
    assert [one["number"] for one in told] == [1, 2, 3, 4]
    assert told[-1]["chunks"] == 2


@pytest.mark.usefixtures("bob")
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("echo.spell", "{}", "--stream"), 1, "`text` is missing"),
        (("echo.spel", "{}", "--stream"), 1, "did you mean echo.spell"),
        (("echo.spell", '{"text": "hihihihihihi"}', "--stream", "--timeout", "0.3"), 1, "tool.timeout"),
        (("echo.spell", "{}", "--stream", "--key", "k"), 2, "--stream excludes"),
    ],
)
def test_failures_are_told_by_a_line_and_an_exit_code(
    bus_command: Run, arguments: tuple[str, ...], code: int, says: str
) -> None:
    refused = bus_command("call", *arguments)
    assert refused.returncode == code, refused.stderr
    assert says in refused.stderr
    assert "Traceback" not in refused.stderr


def test_without_a_broker_it_ends_with_3(bus_command: Run) -> None:
    address = ("--servers", "nats://127.0.0.1:9")
    assert bus_command("call", "a.b", "--stream", *address, env={"BUS_CONNECT_TIMEOUT_S": "0.5"}).returncode == 3


@pytest.mark.usefixtures("bob")
def test_an_interrupt_cancels_the_work(environment: dict[str, str], bus_command: Run) -> None:
    text = json.dumps({"text": "x" * 500, "pause_s": 0.05})
    reading = subprocess.Popen(
        [sys.executable, "-m", "bus", "call", "echo.spell", text, "--stream"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert reading.stdout is not None
    assert reading.stdout.readline() == '"x"\n'
    reading.send_signal(signal.SIGINT)
    _, said = reading.communicate(timeout=10)
    assert (reading.returncode, said) == (130, "")
    for line in bus_command("tail", "--type", "agent_end", "--no-follow", "--json").stdout.splitlines():
        assert json.loads(line)["envelope"]["status"] == "cancelled"
        break
    else:
        pytest.fail("the work has not ended")


def test_the_example_of_the_readme(tmp_path: Path, start: Start, bus_command: Run, environment: dict[str, str]) -> None:
    teller, reading = (
        block for block in re.findall(r"^```py\n(.*?)^```", README, re.M | re.S) if "story.tell" in block
    )
    (command,) = re.findall(r"`(bus call story.tell .*?)`", README)
    (tmp_path / "teller.py").write_text(teller)
    start("bus", "run", "teller:teller", until="running teller")
    body = "".join(f"        {line}\n" for line in reading.splitlines())
    (tmp_path / "client.py").write_text(
        "import asyncio\nfrom bus import Bus\n\nasync def main():\n"
        f"    async with Bus.connect('me') as bus:\n{body}\nasyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "client.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
        timeout=25,
    )  # fmt: skip
    assert done.stdout.split() == ["0.3333333333333333", "word1", "0.6666666666666666", "word2", "1.0", "word3", "3"]
    assert bus_command(*shlex.split(command)[1:]).stdout.splitlines() == ['"word1"', '"word2"', '"word3"']
