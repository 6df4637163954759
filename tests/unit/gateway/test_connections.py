"""Connectors read from a file: every mistake at once, each with its place (REG-11, SEC-7)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bus.calls.call import Call
from bus.gateway.connected import ConnectedAgent
from bus.gateway.connections import BadConnections, load_connections
from bus.gateway.connector import Connector, Wrapped

ROOT = Path(__file__).parents[3]

GOOD = """
[agent]
name = "weather"

[[capability]]
name = "weather.now"
description = "The weather."
example = { city = "Bonn" }
http = { url = "${BASE}/cities/{city}", headers = { Authorization = "Bearer ${KEY}" } }
[capability.input]
type = "object"
required = ["city"]
properties.city = { type = "string" }
"""
ENVIRONMENT = {"BASE": "http://127.0.0.1:1", "KEY": "k-123"}


def load(tmp_path: Path, text: str, environment: dict[str, str] | None = None) -> ConnectedAgent:
    path = tmp_path / "tools.toml"
    path.write_text(text, "utf-8")
    return load_connections(path, ENVIRONMENT if environment is None else environment)


def mistakes(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(BadConnections) as bad:
        load(tmp_path, text)
    return list(bad.value.mistakes)


def test_a_good_file_becomes_an_agent_with_cards(tmp_path: Path) -> None:
    """REG-11, REG-1."""
    agent = load(tmp_path, GOOD)
    assert (agent.name, agent.capabilities) == ("weather", ["weather.now"])
    card = agent._capabilities["weather.now"].card
    assert (card.description, card.example, card.timeout_s) == ("The weather.", {"city": "Bonn"}, 10)
    assert card.input_schema["required"] == ["city"]


def test_schemas_may_be_files(tmp_path: Path) -> None:
    """REG-11: relative to the folder of the file."""
    (tmp_path / "in.json").write_text('{"type": "object", "properties": {"city": {}}, "required": ["city"]}')
    text = re.sub(r"\[capability.input\].*", "", GOOD, flags=re.DOTALL)
    agent = load(tmp_path, text.replace("example =", 'input = "in.json"\nexample ='))
    assert agent._capabilities["weather.now"].card.input_schema["required"] == ["city"]


@pytest.mark.parametrize("name", ["words.toml", "weather.toml"])
def test_the_examples_are_good(name: str) -> None:
    """REG-11."""
    environment = {"WEATHER_URL": "https://weather.example.org", "WEATHER_KEY": "k"}
    assert load_connections(ROOT / "ops" / "connectors" / name, environment).capabilities


BAD = """
[agent]
name = "no good"
color = "red"

[[capability]]
name = "Weather"
description = ""
timeout_s = "5"
http = { url = "ftp://x/{a}", method = "FETCH" }

[[capability]]
name = "weather.now"
description = "x"
example = { b = 1 }
input = "missing.json"
http = { url = "http://{host}/x", headers = { A = "${NOPE}" } }
command = { argv = ["x"] }

[[capability]]
name = "weather.now"
description = "x"
command = { argv = ["x", "{y}", "{"], lines = true, stdin = "none", cwd = "nowhere" }

[[capability]]
name = "weather.c"
description = "x"
example = { m = 1 }
input = { type = "object", properties = { m = { type = "string" } } }
http = { url = "http://me:pw@h/{m}/x" }

[[capability]]
description = "x"
command = { argv = ["{m}"], cancel_grace_s = 1 }
"""


PLACES = (
    "line 6, capability 1 (Weather)",
    "line 12, capability 2 (weather.now)",
    "line 20, capability 3 (weather.now)",
    "line 25, capability 4 (weather.c)",
    "line 32, capability 5",
)


def test_every_mistake_is_told_at_once_with_its_place(tmp_path: Path) -> None:
    """REG-11."""
    first, second, third, fourth, fifth = PLACES
    assert mistakes(tmp_path, BAD) == [
        "agent.name: 'no good' is not a name: 1 to 64 letters, digits, _ and -",
        "agent.color: is not known here",
        f"{first}: timeout_s: Input should be a valid number",
        f"{first}: http.method: Input should be 'GET', 'POST', 'PUT', 'PATCH', 'DELETE' or 'HEAD'",
        f"{fifth}: name: is missing",
        f"{first}: name: must be words of a-z 0-9 _ joined by dots, such as calculator.add",
        f"{first}: description: must say in 1 to 4000 characters what it does; a docstring counts",
        f"{first}: http.url: names {{a}}, which is no property of input; {{{{ means a brace",
        f"{first}: http.url: must begin with http:// or https:// and a host without {{arguments}}",
        f"{second}: input: the file missing.json cannot be read: No such file or directory",
        f"{second}: must have either http or command",
        f"{second}: http.url: names {{host}}, which is no property of input; {{{{ means a brace",
        f"{second}: http.url: must begin with http:// or https:// and a host without {{arguments}}",
        f"{second}: http.headers.A: the environment has no NOPE; set it before the start",
        f"{third}: name: is there already",
        f"{third}: command.stdin: only a program without lines = true has it",
        f"{third}: command.argv.1: takes no arguments, but names y; {{{{ means a brace",
        f"{third}: command.argv.2: a lone '{{' at character 0; write it twice to mean itself",
        f"{third}: command.cwd: nowhere is no folder",
        f'{fourth}: example.m: 1 is not of type "string"',
        f"{fourth}: http.url: must not hold a user; put credentials into headers, from the environment",
        f"{fourth}: http.url: needs {{m}}, so input must require it or give it a default",
        f"{fifth}: command.cancel_grace_s: only a program with lines = true has it",
        f"{fifth}: command.argv.0: names {{m}}, which is no property of input; {{{{ means a brace",
        f"{fifth}: command.argv.0: the program itself must not come from the arguments",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "agent: is missing"),
        ("[agent]\nname = ", "it is not TOML"),
        ('[agent]\nname = "x"', "capability: is missing"),
        ('capability = 3\n[agent]\nname = "x"', "capability: Input should be a valid list"),
        ('capability = [3]\n[agent]\nname = "x"', "capability 1: "),
        (GOOD.replace("${BASE}/cities/{city}", "http://h.example{city}/x"), "a host without {arguments}"),
        (GOOD.replace("${BASE}/cities/{city}", "http://h.example:{city}"), "a host without {arguments}"),
        (GOOD.replace("${BASE}/cities/{city}", "file:///etc/{city}"), "must begin with http://"),
        (GOOD.replace("${BASE}/cities/{city}", "http://h/a b/{city}"), "blanks"),
        (GOOD.replace("${BASE}", "${NO_SUCH}"), "the environment has no NO_SUCH"),
    ],
)  # fmt: skip
def test_other_mistakes(tmp_path: Path, text: str, says: str) -> None:
    """REG-11, SEC-7: where a request goes is never up to its arguments."""
    assert any(says in one for one in mistakes(tmp_path, text)), mistakes(tmp_path, text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """REG-11."""
    for content, says in ((None, "No such file"), (b"\xff", "not UTF-8"), (b"#" * 2_000_000, "more than")):
        path = tmp_path / "tools.toml"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(BadConnections, match=says):
            load_connections(path)


def test_secrets_stay_out_of_what_is_shown(tmp_path: Path) -> None:
    """EDGE-6."""
    agent = load(tmp_path, GOOD, {"BASE": "http://h", "KEY": "sesame"})
    assert "sesame" not in repr(vars(agent.connectors[0]))


class Echo(Connector):
    """What a team writes for a service of its own."""

    async def dispatch(self, capability: str, arguments: dict[str, Any], call: Call) -> Any:
        return {"capability": capability, **arguments}


async def test_the_five_methods() -> None:
    """REG-11: start, stop, register, unregister, dispatch; only the last one must be written."""
    echo = Echo([Wrapped("echo.one", {"description": "Echoes."}), Wrapped("echo.two", {"description": "Echoes."})])
    agent = ConnectedAgent("echo", [echo])
    assert agent.capabilities == ["echo.one", "echo.two"]
    await echo.start()
    await echo.stop()
    echo.unregister(agent)
    assert agent.capabilities == []
    echo.unregister(agent)
    echo.register(agent)
    with pytest.raises(ValueError, match="already has"):
        echo.register(agent)
