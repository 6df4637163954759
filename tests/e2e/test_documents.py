"""What the README shows is run as it stands there."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bus.testing import check_chain
from tests.e2e.conftest import ROOT

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]

README = (ROOT / "README.md").read_text("utf-8")
# What each command of the README answers with, and how a command that does not end is made to end.
EXPECTED = {
    "bus up": None,
    "bus run shouter:shouter": None,
    'bus send shouter note \'{"text": "hi"}\' --wait': (0, '"text":"HI"'),
    "bus send shouter note '{\"text\": 1}' --wait": (1, "payload.text"),
    "bus dead ls": (0, "tool.validation_failed"),
    "bus tail --since 10m": (0, "shouter > cli  noted"),
    "bus trace WORKFLOW_ID": (1, "no message of the workflow WORKFLOW_ID is known"),
    "bus doctor": (0, "nothing is wrong"),
    'bus chaos shouter:shouter --type note --payload \'{"text": "hi"}\'': (0, "good"),
    "bus bench": (0, "messages handled"),
    "bus run adder:adder": None,
    "bus registry ls": (0, "calculator.add"),
    'bus call calculator.add \'{"a": 1, "b": "2"}\'': (0, '"sum": 3.0'),
    'bus call calculator.add \'{"a": 1, "c": 2}\'': (1, "`b` is missing"),
    'bus call report.write \'{"topic": "buses"}\'': (0, "-"),
    'bus call calculator.add \'{"a": 1, "b": 2}\' --no-wait': (0, "-"),
    "bus task ls": (0, "report.write"),
    "bus rules check rules.toml": (0, "2 rules can be used"),
    "bus rules explain writer-7 calculator.add adder --rules rules.toml": (1, "denied by line 6"),
    "bus run adder:adder --rules rules.toml": None,
    'bus call calculator.add \'{"a": 2, "b": 2}\'': (0, '"sum": 4.0'),
    'bus call calculator.add \'{"a": 2, "b": 2}\' --from stranger': (1, "adder has no capability 'calculator.add'"),
    "bus audit --denied": (0, "auth.permission_denied"),
    "bus audit --agent adder --since 1h": (0, "ok"),
}
WITH_RULES = list(EXPECTED)[list(EXPECTED).index("bus rules check rules.toml") :]
# Which of them are about the agent `adder`, and which about `reporter`.
CALLS, TASKS = re.compile(r"^bus (call calculator|registry)"), re.compile(r"^bus (task|call report)")
# Which need no agent that runs.
ALONE = re.compile(r"^bus (chaos|bench)")
AT_ONCE = 4


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language; fences alternate between opening and closing."""
    fences = re.split(r"^```(.*)\n", README, flags=re.M)[1:]
    return [text for opened, text in zip(fences[0::4], fences[1::4], strict=False) if opened == language]


def commands() -> list[str]:
    lines = [line.partition("  #")[0].strip() for block in blocks("") for line in block.splitlines()]
    return [line for line in lines if line.startswith("bus ")]


def test_every_command_is_known_here() -> None:
    assert commands() == list(EXPECTED)


def test_the_agent_and_the_commands(tmp_path: Path, start: Start, bus_command: Run) -> None:
    agent, *_ = blocks("python")
    (tmp_path / "shouter.py").write_text(agent)
    start("bus", "run", "shouter:shouter", until="running shouter")
    other = re.compile("|".join(one.pattern for one in (CALLS, TASKS, ALONE)))
    mine = [one for one in EXPECTED if one not in WITH_RULES and not other.search(one)]
    # The others look at what is sent.
    run_at_once((one for one in mine if one.startswith("bus send")), bus_command)
    run_at_once((one for one in mine if not one.startswith("bus send")), bus_command)


@pytest.mark.parametrize("command", [one for one in EXPECTED if ALONE.search(one)])
def test_the_commands_that_need_no_agent_that_runs(command: str, tmp_path: Path, bus_command: Run) -> None:
    agent, *_ = blocks("python")
    (tmp_path / "shouter.py").write_text(agent)
    run_all([command], bus_command)


def test_the_capability_and_the_commands(tmp_path: Path, start: Start, bus_command: Run) -> None:
    _, _, _, adder, _ = blocks("python")
    (tmp_path / "adder.py").write_text(adder)
    start("bus", "run", "adder:adder", until="running adder")
    run_at_once((one for one in EXPECTED if CALLS.search(one) and one not in WITH_RULES), bus_command)


def test_what_takes_long(tmp_path: Path, start: Start, bus_command: Run, environment: dict[str, str]) -> None:
    """REG-8."""
    reporter, submitting = (block for block in blocks("py") if "report.write" in block)
    (tmp_path / "reporter.py").write_text(reporter)
    start("bus", "run", "reporter:reporter", until="running reporter")
    run_all([command for command in EXPECTED if TASKS.search(command)], bus_command)
    later = "".join(f"    {line}\n" for line in submitting.splitlines())
    (tmp_path / "later.py").write_text(
        f"import asyncio\nfrom bus import Bus\n\nasync def main():\n  async with Bus.connect() as bus:\n{later}\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "later.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "1 pages about buses\n", done.stderr


def test_the_rules_and_the_commands(tmp_path: Path, start: Start, bus_command: Run) -> None:
    """SEC-2, SEC-6."""
    _, _, _, adder, _ = blocks("python")
    (tmp_path / "adder.py").write_text(adder)
    (tmp_path / "rules.toml").write_text(next(block for block in blocks("toml") if "[[allow]]" in block))
    start("bus", "run", "adder:adder", "--rules", "rules.toml", until="running adder")
    run_all(WITH_RULES, bus_command)


def run_at_once(commands: Iterable[str], bus_command: Run) -> None:
    """Runs those that do not wait for each other."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda command: run_all([command], bus_command), commands))


def run_all(commands: list[str], bus_command: Run) -> None:
    """Runs those that end, and compares."""
    for command in commands:
        expected = EXPECTED[command]
        if expected is None:
            continue
        words = shlex.split(command)[1:]
        done = bus_command(*words, *(["--no-follow"] if words[0] == "tail" else []))
        code, says = expected
        assert done.returncode == code, (command, done.stdout, done.stderr)
        assert says in done.stdout + done.stderr, command


def test_the_upcaster() -> None:
    """SCH-4."""
    agent, versions, *_ = blocks("python")
    names: dict[str, Any] = {"__name__": "shouter"}
    exec(agent + versions, names)
    read = check_chain(names["shouter"], "card", {"1.0": [{"title": "hi"}], "2.0": [{"heading": "hi"}]})
    assert read == {"1.0": [names["Card"](heading="hi")], "2.0": [names["Card"](heading="hi")]}


async def test_the_client(environment: dict[str, str], tmp_path: Path, start: Start) -> None:
    agent, _, client, adder, calling = blocks("python")
    (tmp_path / "shouter.py").write_text(agent)
    (tmp_path / "adder.py").write_text(adder)
    start("bus", "run", "shouter:shouter", until="running shouter")
    start("bus", "run", "adder:adder", until="running adder")
    client += calling
    body = "".join(f"    {line}\n" for line in client.splitlines() if not line.startswith("from "))
    (tmp_path / "client.py").write_text(
        f"import asyncio\nfrom bus import Bus, CallDraft\n\nasync def main():\n{body}\nasyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "client.py", cwd=tmp_path, env=environment, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert out.decode().splitlines() == ["{'text': 'HI'}", "{'sum': 3.0} [{'sum': 2.0}, {'sum': 4.0}]"]
