"""Programs on the bus: real processes that answer, fail, hang and are killed (REG-11, SEC-7)."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bus import Bus, BusError, Settings
from bus.gateway.connected import ConnectedAgent
from bus.gateway.connections import load_connections
from bus.gateway.json_lines import JsonLines

PROGRAM = Path(__file__).with_name("programs.py")
TOML = """
[agent]
name = "programs"

[[capability]]
name = "lines.do"
description = "What a running program does."
example = { do = "" }
timeout_s = 20
input = { type = "object" }
command = { argv = ["PYTHON", "PROGRAM"], lines = true, max_output_bytes = 100000, cancel_grace_s = 0.3 }

[[capability]]
name = "lines.keep"
description = "The same process, for what may be done twice."
idempotent = true
timeout_s = 20
input = { type = "object" }
command = { argv = ["PYTHON", "PROGRAM"], lines = true, max_output_bytes = 100000, cancel_grace_s = 0.3 }

[[capability]]
name = "once.do"
description = "What a process of its own does."
timeout_s = 20
input = { type = "object" }
[capability.command]
argv = ["PYTHON", "PROGRAM", "once"]
max_output_bytes = 100000
env = { TOKEN = "${TOKEN}" }

[[capability]]
name = "once.print"
description = "Prints its words."
timeout_s = 20
input = { type = "object", required = ["first"], properties = { first = {}, second = {} } }
[capability.command]
argv = ["PYTHON", "-c", "import sys; print(sys.argv[1:], sys.stdin.read())", "{first}", "--second={second}"]
stdin = "say {first}"
output = "text"
"""


def load(tmp_path: Path) -> ConnectedAgent:
    path = tmp_path / "programs.toml"
    path.write_text(TOML.replace("PYTHON", sys.executable).replace("PROGRAM", str(PROGRAM)))
    return load_connections(path, {"TOKEN": "sesame-open-0123"})


@pytest.fixture
async def agent(settings: Settings, tmp_path: Path) -> AsyncIterator[ConnectedAgent]:
    """The programs as an agent."""
    agent = load(tmp_path)
    async with agent.running(settings):
        yield agent


async def failure(bus: Bus, capability: str, arguments: dict[str, Any], **options: Any) -> BusError:
    with pytest.raises(BusError) as failed:
        await bus.call(capability, arguments, retries=0, **options)
    return failed.value


async def until_gone(pid: int) -> None:
    """Waits until no such process is there, or only what its parent has not read yet."""
    while True:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except (ProcessLookupError, FileNotFoundError):
            return
        await asyncio.sleep(0.02)


async def mark(path: Path) -> int:
    """The process that has said that it hangs."""
    while not path.exists() or not path.read_text().endswith("\n"):
        await asyncio.sleep(0.02)
    return int(path.read_text().split()[-1])


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("capability", ["lines.do", "once.do"])
async def test_arguments_go_in_and_data_comes_out(bus: Bus, capability: str) -> None:
    """REG-11."""
    assert (await bus.call(capability, {"a": [1, "ü\n", None]})).data == {"a": [1, "ü\n", None]}
    many = await asyncio.gather(*(bus.call(capability, {"n": n}) for n in range(8)))
    assert [one.data for one in many] == [{"n": n} for n in range(8)]


@pytest.mark.usefixtures("agent")
async def test_one_program_serves_all_its_capabilities(bus: Bus) -> None:
    """REG-11: one process, for as long as it lives."""
    pids = {(await bus.call(name, {"do": "pid"})).data for name in ("lines.do", "lines.keep", "lines.do")}
    assert len(pids) == 1
    assert len({(await bus.call("once.do", {"do": "pid"})).data for _ in range(2)}) == 2


@pytest.mark.usefixtures("agent")
async def test_words_are_never_read_by_a_shell(bus: Bus) -> None:
    """SEC-7: and a word whose argument is absent is left out."""
    nasty = '$(id); `id` "x" > /tmp/x *'
    printed = (await bus.call("once.print", {"first": nasty, "second": "-5"})).data
    assert printed == f"{[nasty, '--second=-5']} say {nasty}"
    assert (await bus.call("once.print", {"first": 7})).data == "['7'] say 7"
    assert (await bus.call("once.print", {"first": -7})).data == "['-7'] say -7"
    refused = (await failure(bus, "once.print", {"first": "--help"})).info
    assert (refused.code, "option" in refused.message) == ("tool.validation_failed", True)
    assert (await failure(bus, "once.print", {"first": "a\0b"})).info.code == "tool.validation_failed"
    assert (await failure(bus, "once.print", {"first": "x" * 200_000})).info.code == "protocol.too_large"


@pytest.mark.usefixtures("agent")
async def test_programs_get_only_what_is_named_of_our_environment(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """EDGE-6: no key that lies about."""
    monkeypatch.setenv("OTHER_KEY", "x")
    got = (await bus.call("once.do", {"do": "env"})).data
    assert got["TOKEN"] == "sesame-open-0123"
    assert "PATH" in got
    assert not {name for name in got if name == "OTHER_KEY" or name.startswith("BUS_")}


@pytest.mark.usefixtures("agent")
async def test_exit_codes_and_the_end_of_standard_error(bus: Bus) -> None:
    """REG-11: the tail is in the error, without the secret."""
    info = (await failure(bus, "once.do", {"do": "exit", "code": 3})).info
    assert (info.code, info.retryable, info.details["exit_code"]) == ("tool.execution_failed", False, 3)
    assert "I cannot go on" in info.message
    assert "sesame" not in str(info.to_wire())
    later = (await failure(bus, "once.do", {"do": "exit", "code": 75})).info
    assert (later.code, later.retryable) == ("upstream.failed", True)
    killed = (await failure(bus, "once.do", {"do": "die"})).info
    assert (killed.code, "SIGKILL" in killed.message) == ("upstream.failed", True)
    assert (await bus.call("once.do", {"do": "noise"})).ok


@pytest.mark.usefixtures("agent")
async def test_garbage_and_floods(bus: Bus) -> None:
    """SEC-7: bounded output."""
    assert (await failure(bus, "once.do", {"do": "garbage"})).info.code == "tool.invalid_result"
    assert (await failure(bus, "once.do", {"do": "huge"})).info.code == "protocol.too_large"
    flood = (await failure(bus, "lines.do", {"do": "huge"})).info
    assert (flood.code, "100000 bytes" in flood.message) == ("upstream.failed", True)
    assert (await bus.call("lines.keep", {"n": 1})).data == {"n": 1}


@pytest.mark.usefixtures("agent")
async def test_lines_that_answer_nothing_are_logged_and_left_alone(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    """SEC-7: whoever prints to standard output for debugging breaks nothing."""
    assert (await bus.call("lines.do", {"do": "garbage"})).data == {"do": "garbage"}
    assert caplog.text.count("answers nothing") == 3


@pytest.mark.usefixtures("agent")
async def test_a_program_says_what_failed(bus: Bus) -> None:
    """REG-11: a text, or a code of our table."""
    failed = (await failure(bus, "lines.do", {"do": "fail", "error": "no such city"})).info
    assert (failed.code, "no such city" in failed.message) == ("tool.execution_failed", True)
    said = {"code": "upstream.rate_limit", "message": "slower", "retryable": False}
    limited = (await failure(bus, "lines.do", {"do": "fail", "error": said})).info
    assert (limited.code, limited.retryable) == ("upstream.rate_limit", False)
    strange = (await failure(bus, "lines.do", {"do": "fail", "error": {"code": 7}})).info
    assert strange.code == "tool.execution_failed"


@pytest.mark.usefixtures("agent")
async def test_a_program_that_is_killed_in_the_middle_of_a_call(bus: Bus, tmp_path: Path) -> None:
    """REG-11: the caller hears it at once, and the next call finds a new process."""
    path = tmp_path / "mark"
    call = asyncio.create_task(failure(bus, "lines.do", {"do": "hang", "mark": str(path)}))
    os.kill(await mark(path), signal.SIGKILL)
    info = (await call).info
    assert (info.code, "SIGKILL" in info.message) == ("upstream.failed", True)
    assert (await bus.call("lines.do", {"n": 2})).data == {"n": 2}


@pytest.mark.usefixtures("agent")
async def test_what_may_be_done_twice_outlives_its_program(bus: Bus, tmp_path: Path) -> None:
    """REG-11, TOOL-5: an idempotent call is made again."""
    dying = asyncio.create_task(failure(bus, "lines.do", {"do": "die"}))
    results = await asyncio.gather(*(bus.call("lines.keep", {"n": n}) for n in range(5)))
    assert [one.data for one in results] == [{"n": n} for n in range(5)]
    assert (await dying).info.code == "upstream.failed"


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("capability", ["lines.do", "once.do"])
@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_a_program_that_hangs_is_killed(bus: Bus, tmp_path: Path, capability: str, how: str) -> None:
    """REG-11: when the time is over, and when the caller gives up."""
    path = tmp_path / "mark"
    arguments = {"do": "hang", "mark": str(path)}
    started = time.monotonic()
    call = asyncio.create_task(bus.call(capability, arguments, timeout_s=1.0 if how == "timeout" else 20, retries=0))
    pid = await mark(path)
    if how == "cancel":
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    else:
        with pytest.raises(BusError, match=r"tool\.timeout"):
            await call
    await until_gone(pid)
    assert time.monotonic() - started < 15
    assert (await bus.call(capability, {"n": 3})).data == {"n": 3}


@pytest.mark.usefixtures("agent")
async def test_children_do_not_outlive_their_call(bus: Bus) -> None:
    """REG-11: a grandchild that holds the output open neither blocks the result nor stays."""
    child = (await bus.call("once.do", {"do": "family"})).data
    await until_gone(child)


async def test_a_program_that_dies_at_once_is_started_again_with_pauses(
    bus: Bus, settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """REG-11: no busy loop, and the caller hears when to try again."""
    path = tmp_path / "bad.toml"
    path.write_text(
        '[agent]\nname = "bad"\n[[capability]]\nname = "bad.one"\ndescription = "x"\n'
        'command = { argv = ["false"], lines = true }\n'
    )
    async with load_connections(path).running(settings):
        with caplog.at_level(logging.WARNING):
            deadline = time.monotonic() + 2
            while time.monotonic() < deadline:
                info = (await failure(bus, "bad.one", {})).info
                assert info.code in ("upstream.failed", "tool.execution_failed")
        info = (await failure(bus, "bad.one", {})).info
        assert info.retryable
    # At once, then after 0.5, 1 and 2 seconds; without pauses there would be hundreds.
    assert 2 <= caplog.text.count("exit code 1") <= 6


BEHAVIOURS = """
import json, os, sys, threading, time

def answer(question):
    time.sleep(question["arguments"]["after_s"])
    print(json.dumps({"id": question["id"], "data": question["arguments"]["n"]}), flush=True)

if sys.argv[1] == "deaf":
    time.sleep(25)
for line in sys.stdin:
    question = json.loads(line)
    if "cancel" in question:
        continue
    if sys.argv[1] == "mute":
        os.close(1)
        time.sleep(25)
    threading.Thread(target=answer, args=[question]).start()
"""


def behaving(tmp_path: Path, how: str) -> ConnectedAgent:
    """A program that behaves in one of those ways, four calls at once."""
    (tmp_path / "program.py").write_text(BEHAVIOURS)
    path = tmp_path / "program.toml"
    path.write_text(
        '[agent]\nname = "program"\n[[capability]]\nname = "program.do"\ndescription = "x"\ntimeout_s = 20\n'
        'input = { type = "object" }\n'
        f'command = {{ argv = ["{sys.executable}", "program.py", "{how}"], lines = true, concurrency = 4, '
        "cancel_grace_s = 0.2 }\n"
    )
    return load_connections(path)


async def test_answers_come_in_any_order(bus: Bus, settings: Settings, tmp_path: Path) -> None:
    """REG-11: as many at once as the file says, the others wait."""
    async with behaving(tmp_path, "good").running(settings):
        ended: list[int] = []

        async def ask(n: int) -> None:
            after_s = 0.4 if n == 0 else 0.0
            assert (await bus.call("program.do", {"n": n, "after_s": after_s})).data == n
            ended.append(n)

        await asyncio.gather(*(ask(n) for n in range(20)))
    assert ended[-1] == 0


@pytest.mark.parametrize(("how", "code"), [("deaf", "tool.timeout"), ("mute", "upstream.failed")])
async def test_programs_that_do_not_listen_or_cannot_answer(
    bus: Bus, settings: Settings, tmp_path: Path, how: str, code: str
) -> None:
    """REG-11: neither fills the pipe for ever nor waits for an output that is closed."""
    async with behaving(tmp_path, how).running(settings):
        arguments = {"n": "x" * 200_000, "after_s": 0}
        timeout_s = 1.0 if how == "deaf" else 20
        assert (await failure(bus, "program.do", arguments, timeout_s=timeout_s)).info.code == code
        # The next one may still meet the one that is being killed.
        again = await failure(bus, "program.do", arguments, timeout_s=timeout_s)
        assert again.info.code in (code, "upstream.failed")


async def test_a_program_that_is_not_there_stops_the_start(settings: Settings, tmp_path: Path) -> None:
    """REG-11: before anybody could call it."""
    path = tmp_path / "bad.toml"
    path.write_text(
        '[agent]\nname = "bad"\n[[capability]]\nname = "bad.one"\ndescription = "x"\n'
        'command = { argv = ["no-such-program"], lines = true }\n'
    )
    with pytest.raises(BusError, match="no-such-program cannot be started: No such file"):
        async with load_connections(path).running(settings):
            pass


@pytest.mark.parametrize("hanging", [False, True])
async def test_a_drain_ends_the_children(bus: Bus, settings: Settings, tmp_path: Path, hanging: bool) -> None:
    """REG-11: at the end of the input, or else by force."""
    agent = load(tmp_path)
    path = tmp_path / "mark"
    async with agent.running(settings, grace_s=0.2):
        pid = (await bus.call("lines.do", {"do": "pid"})).data
        call = None
        if hanging:
            call = asyncio.create_task(failure(bus, "lines.do", {"do": "hang", "mark": str(path)}))
            assert await mark(path) == pid
    await until_gone(pid)
    if call is not None:
        assert (await call).info.code in ("agent.unavailable", "upstream.failed")


async def test_two_replicas_have_a_process_each(bus: Bus, settings: Settings, tmp_path: Path) -> None:
    """REG-11: when the program of one is killed, the calls that may be made twice all have a result."""
    first, second = load(tmp_path), load(tmp_path)
    async with first.running(settings), second.running(settings):
        pids = set[int]()
        while len(pids) < 2:
            pids.add((await bus.call("lines.keep", {"do": "pid"})).data)
        calls = [asyncio.create_task(bus.call("lines.keep", {"n": n})) for n in range(30)]
        os.kill(pids.pop(), signal.SIGKILL)
        assert [one.data for one in await asyncio.gather(*calls)] == [{"n": n} for n in range(30)]


async def test_starting_and_stopping_without_a_bus(tmp_path: Path) -> None:
    """REG-11: a second stop does nothing."""
    agent = load(tmp_path)
    for connector in agent.connectors:
        await connector.start()
        await connector.stop()
        await connector.stop()
    assert isinstance(agent.connectors[0], JsonLines)
