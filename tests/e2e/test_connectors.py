"""`bus run FILE.toml`: services and programs on the bus, and what the documents show of it (REG-11)."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from tests.e2e.conftest import ROOT
from tests.integration.http_server import serving

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]

README = (ROOT / "README.md").read_text("utf-8").partition("## Old services and models")[2].partition("\n## ")[0]
OPS = (ROOT / "ops/connectors/README.md").read_text("utf-8")
# What each command of the documents answers with; None: it runs until it is stopped.
EXPECTED: dict[str, str | None] = {
    "bus run names.toml": None,
    "bus registry test names.sort": "good  names.sort 1.0.0 of names",
    'bus call names.sort \'{"names": "Zoe\\nAda"}\'': '"Ada\\nZoe"',
    "bus run ops/connectors/words.toml": None,
    "bus registry test words.count": "good  words.count 1.0.0 of words",
    "bus registry test words.sort": "good  words.sort 1.0.0 of words",
    'bus call words.count \'{"text": "to be or not to be", "top": 2}\'': '"to": 2',
}


def block(text: str, language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def commands(text: str) -> list[str]:
    return block(text, "sh").splitlines()


def test_every_command_is_known_here() -> None:
    assert [*commands(README), *commands(OPS)] == list(EXPECTED)


@pytest.mark.parametrize(("document", "agent"), [(README, "names"), (OPS, "words")], ids=["readme", "ops"])
def test_the_commands_of_the_documents(
    document: str, agent: str, start: Start, bus_command: Run, tmp_path: Path
) -> None:
    (tmp_path / "names.toml").write_text(block(README, "toml"))
    for command in commands(document):
        expected, words = EXPECTED[command], shlex.split(command)
        if expected is None:
            start(*words, until=f"running {agent}", cwd=tmp_path if agent == "names" else ROOT)
            continue
        done = bus_command(*words[1:])
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert expected in done.stdout, command


class FakePaidModel:
    """Stands for a paid model: it calls the calculator, wrongly first, and then says what it heard."""

    def __init__(self) -> None:
        self.chat = self
        self.completions = self
        self.asked: list[dict[str, Any]] = []

    async def create(self, **asked: Any) -> ChatCompletion:
        self.asked.append(json.loads(json.dumps(asked)))
        arguments = {1: '{"a": 1}', 2: '{"a": 1, "b": 2}'}.get(len(self.asked))
        message: dict[str, Any] = {"role": "assistant", "content": asked["messages"][-1]["content"]}
        if arguments is not None:
            function = {"name": asked["tools"][0]["function"]["name"], "arguments": arguments}
            call = {"id": f"call_{len(self.asked)}", "type": "function", "function": function}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "finish_reason": "stop", "message": message, "logprobs": None}
        return ChatCompletion.model_validate(
            {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        )


async def test_the_conversation_of_the_readme(
    start: Start, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """TOOL-3, TOOL-4: a refusal goes back to the model, and its next call is good."""
    start("bus", "run", "agents.alice:alice", until="running alice", cwd=ROOT)
    monkeypatch.setenv("BUS_SERVERS", environment["BUS_SERVERS"])
    names: dict[str, Any] = {}
    exec(block(README, "py"), names)
    model = FakePaidModel()
    assert await names["ask"](model, "m", "What is 1 + 2?") == '{"sum":3.0}'
    refused = model.asked[1]["messages"][-1]
    assert (refused["role"], refused["tool_call_id"]) == ("tool", "call_1")
    assert "`b` is missing" in refused["content"]


def test_a_bad_file_ends_with_2_and_all_of_its_mistakes(bus_command: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text('[agent]\nname = "a b"\n[[capability]]\nname = "X"\ndescription = "x"\n')
    refused = bus_command("run", "bad.toml")
    assert refused.returncode == 2
    assert "bad.toml has 3 mistakes" in refused.stderr
    assert "line 3, capability 1 (X): must have either http or command" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert bus_command("run", "absent.toml").returncode == 2


PID = """
[agent]
name = "pids"

[[capability]]
name = "pid.of_lines"
description = "The process."
command = { argv = ["PYTHON", "pid.py"], lines = true }

[[capability]]
name = "pid.hang"
description = "Hangs."
timeout_s = 60
command = { argv = ["PYTHON", "-c", "import os, time; open('hanging', 'w').write(str(os.getpid())); time.sleep(60)"] }
"""
PROGRAM = """
import json, os, sys
for line in sys.stdin:
    print(json.dumps({"id": json.loads(line)["id"], "data": os.getpid()}), flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_children_end_with_the_agent(number: int, start: Start, bus_command: Run, tmp_path: Path) -> None:
    """REG-11: a drain ends them; a program that runs all the time sees the end of its input when we are killed."""
    (tmp_path / "pid.toml").write_text(PID.replace("PYTHON", sys.executable))
    (tmp_path / "pid.py").write_text(PROGRAM)
    agent = start("bus", "run", "pid.toml", "--grace", "0.5", until="running pids")
    pids = [json.loads(bus_command("call", "pid.of_lines", "{}").stdout)]
    if number == signal.SIGTERM:
        bus_command("call", "pid.hang", "{}", "--notify")
        hanging = tmp_path / "hanging"
        while not hanging.exists() or not hanging.read_text():
            time.sleep(0.02)
        pids.append(int(hanging.read_text()))
    agent.send_signal(number)
    assert agent.wait(20) == (0 if number == signal.SIGTERM else -number)
    for pid in pids:
        while is_alive(pid):
            time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_an_http_service_of_the_examples(
    bus_command: Run, environment: dict[str, str], start: Start, tmp_path: Path
) -> None:
    """REG-11: ops/connectors/weather.toml, with a key that is named in the environment alone."""
    with serving() as service:
        environment.update(WEATHER_URL=service.url, WEATHER_KEY="sesame-open-0123")
        start("bus", "run", "ops/connectors/weather.toml", until="running weather", cwd=ROOT)
        tried = bus_command("registry", "test", "weather.now")
        assert tried.returncode == 0, tried.stdout
        got = json.loads(bus_command("call", "weather.now", '{"city": "Köln", "unit": "c"}').stdout)
    assert (got["path"], got["query"]) == ("/cities/K%C3%B6ln/weather", {"unit": ["c"]})
    assert got["headers"]["authorization"] == "Bearer sesame-open-0123"
