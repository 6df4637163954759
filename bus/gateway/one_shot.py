"""The connector for programs of which one process is started for each call (REG-11)."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from bus.broker.tasks import end
from bus.calls.call import Call
from bus.errors import error
from bus.gateway.connector import Connector, Wrapped
from bus.gateway.processes import Tail, ended, feed, kill, read_bounded, spawn
from bus.gateway.template import Template, written

DEFAULT_MAX_BYTES = 4 * 1024 * 1024
# The exit code that sysexits.h has for "try again later".
TRY_LATER = 75

_LOOK_S = 0.1
_LEFT_OPEN_S = 0.5


@dataclass(frozen=True, slots=True)
class Command:
    """How a capability becomes a process.

    `argv` is never given to a shell; a word with an argument that is absent is left out. `stdin`: "json" for the
    arguments, "none", or a text. `output`: "json" or "text". With an exit code of `retry_exit_codes` the program says
    that another try may help. `environment` is all that it gets beside the usual few (`processes.INHERITED`).
    """

    argv: tuple[Template, ...]
    cwd: Path
    stdin: str | Template = "json"
    output: str = "json"
    environment: Mapping[str, Template] = field(default_factory=dict, hash=False, repr=False)
    max_output_bytes: int = DEFAULT_MAX_BYTES
    retry_exit_codes: tuple[int, ...] = (TRY_LATER,)

    @property
    def templates(self) -> tuple[Template, ...]:
        """All of its texts that may name arguments."""
        return (*self.argv, *([self.stdin] if isinstance(self.stdin, Template) else []))


class OneShot(Connector):
    """Capabilities that are programs, one process for each call.

    A program that hangs is killed with its children when the call's time is over or its caller gives up. What it writes
    to standard error stands, as far as the end of it, in the error. Exit codes other than 0 are
    `tool.execution_failed`, or `upstream.failed` for those that ask for another try and for signals.
    """

    def __init__(self, commands: Sequence[tuple[Wrapped, Command]]) -> None:
        super().__init__([wrapped for wrapped, _ in commands])
        self._commands = {wrapped.name: command for wrapped, command in commands}

    async def dispatch(self, capability: str, arguments: dict[str, Any], call: Call) -> Any:
        """Runs the program once."""
        command = self._commands[capability]
        argv = arguments_of(command, arguments)
        environment = {name: template.fill({}, _as_text) or "" for name, template in command.environment.items()}
        process = await spawn(argv, command.cwd, environment)
        tail = Tail([one for template in command.environment.values() for one in template.secrets])
        try:
            output = await _exchange(process, _input(command, arguments), command.max_output_bytes, tail, capability)
        finally:
            await asyncio.shield(kill(process))
        if process.returncode != 0:
            raise ended(f"{capability}: {argv[0]}", process.returncode, tail, command.retry_exit_codes)
        return _result(command, output, capability, tail)


def arguments_of(command: Command, arguments: Mapping[str, Any]) -> list[str]:
    """The words of the process. Raises Rejected for a text that the program would take for an option."""
    words: list[str] = []
    for template in command.argv:
        word = template.fill(arguments, _as_text)
        if word is None:
            continue
        name = template.only_name
        if name is not None and isinstance(arguments[name], str) and word.startswith("-") and "--" not in words:
            problem = "must not begin with -, because the program would take it for an option"
            found = {"path": f"arguments.{name}", "problem": problem}
            raise error("tool.validation_failed", f"arguments.{name} {problem}", errors=[found])
        words.append(word)
    return words


def _input(command: Command, arguments: Mapping[str, Any]) -> bytes:
    if isinstance(command.stdin, Template):
        return (command.stdin.fill(arguments, _as_text) or "").encode("utf-8", "replace")
    return orjson.dumps(arguments) if command.stdin == "json" else b""


async def _exchange(process: Process, given: bytes, limit: int, tail: Tail, name: str) -> bytes:
    """Feeds and reads the process until its output ends. Raises Rejected `protocol.too_large`."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    output = asyncio.create_task(read_bounded(process.stdout, limit, name), name=f"output of {name}")
    others = [
        asyncio.create_task(feed(process.stdin, given), name=f"input of {name}"),
        asyncio.create_task(tail.read(process.stderr), name=f"errors of {name}"),
    ]
    try:
        waiting: set[asyncio.Task[Any]] = {output, *others}
        while waiting:
            done, waiting = await asyncio.wait(waiting, timeout=_LOOK_S, return_when=asyncio.FIRST_EXCEPTION)
            if output in done and output.exception() is not None:
                break
            if process.returncode is not None and waiting:
                # Its children may hold the pipes open; what it has printed itself is there by now.
                _, waiting = await asyncio.wait(waiting, timeout=_LEFT_OPEN_S)
                if waiting:
                    await kill(process)
        found = await output
        await process.wait()
        return found
    finally:
        await end(output, *others)


def _result(command: Command, output: bytes, name: str, tail: Tail) -> Any:
    if command.output == "text":
        return output.decode("utf-8", "replace").removesuffix("\n")
    try:
        return orjson.loads(output)
    except orjson.JSONDecodeError as problem:
        shown = output[:200].decode("utf-8", "replace")
        raise error(
            "tool.invalid_result", f"{name} printed no JSON value: {problem}", output=shown, stderr=tail.text
        ) from None


def _as_text(_: str, value: Any) -> str:
    return written(value)
