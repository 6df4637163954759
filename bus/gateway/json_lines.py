"""The connector for a program that runs all the time, and answers one line of JSON with another (REG-11)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
import uuid
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from bus.broker.tasks import end
from bus.calls.call import Call
from bus.errors import TABLE, BusError, ErrorInfo, error
from bus.gateway.connector import Connector, Wrapped
from bus.gateway.processes import Tail, end_gently, ended, kill, signal_group, spawn
from bus.gateway.template import Template
from bus.text import one_line

log = logging.getLogger("bus.gateway")

DEFAULT_MAX_BYTES = 4 * 1024 * 1024
FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 30.0
# Who lives longer than this has not failed to start.
GOOD_LIFE_S = 10.0
CANCEL_GRACE_S = 2.0
START_S = 1.0
LOOK_S = 0.3
MAX_TOLD = 5


@dataclass(frozen=True, slots=True)
class Program:
    """A program that runs all the time. `concurrency` is how many lines it is given before it has answered."""

    argv: tuple[str, ...]
    cwd: Path
    environment: Mapping[str, Template] = field(default_factory=dict, hash=False, repr=False)
    concurrency: int = 1
    max_line_bytes: int = DEFAULT_MAX_BYTES
    cancel_grace_s: float = CANCEL_GRACE_S


class JsonLines(Connector):
    """Capabilities of one program: it reads `{"id", "capability", "arguments", "timeout_s"}`, one in a line.

    It answers `{"id", "data"}` or `{"id", "error"}` in any order, where the error is a text, or `{"message"}` with
    `code` and `retryable` if it wants. When a caller gives up it is told `{"cancel": id}`; what it then does not answer
    within the grace counts as hung, and the program is killed. When it dies, those in its hands hear
    `upstream.failed`, and it is started again: at once, then after growing pauses. It should end at the end of its
    input. Other lines are logged and left alone.
    """

    def __init__(self, program: Program, wrapped: Sequence[Wrapped]) -> None:
        super().__init__(wrapped)
        self._program = program
        self._name = Path(program.argv[0]).name
        self._process: Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self._slots = asyncio.Semaphore(program.concurrency)
        self._asked: dict[str, asyncio.Future[Any]] = {}
        self._back_at = 0.0

    async def start(self) -> None:
        """Starts the program. Raises ToolError when that is not possible; dying comes later, and is mended."""
        self._keeper = asyncio.create_task(self._keep(await self._spawn()), name=f"program {self._name}")

    async def stop(self) -> None:
        """Closes its input and waits for its end, two seconds, then ends it; a second call does nothing."""
        keeper, self._keeper = self._keeper, None
        await end(keeper)
        process, self._process = self._process, None
        if process is not None:
            await asyncio.shield(end_gently(process))

    async def dispatch(self, capability: str, arguments: dict[str, Any], call: Call) -> Any:
        """Asks the program, after those that asked before."""
        await self._slots.acquire()
        id = uuid.uuid4().hex
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[id] = answer
        answer.add_done_callback(lambda _: self._settled(id))
        process = None
        try:
            process = await self._running()
            left_s = round(call.remaining_s, 3)
            question = {"id": id, "capability": capability, "arguments": arguments, "timeout_s": left_s}
            _write(process, question)
            await _drain(process)
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            self._give_up(id, answer, process)
            raise
        except BusError:
            answer.cancel()
            raise

    def _settled(self, id: str) -> None:
        self._asked.pop(id, None)
        self._slots.release()

    def _give_up(self, id: str, answer: asyncio.Future[Any], process: Process | None) -> None:
        """Nobody waits any more; the program keeps its place until it has answered, or is killed for not doing so."""
        if answer.done() or process is None:
            answer.cancel()
            return
        answer.add_done_callback(_forget)
        _write(process, {"cancel": id})

        def hung() -> None:
            if not answer.done():
                log.warning("%s did not answer a cancelled call within its grace, and is killed", self._name)
                signal_group(process, signal.SIGKILL)

        asyncio.get_running_loop().call_later(self._program.cancel_grace_s, hung)

    async def _running(self) -> Process:
        """The process, when there is one within a moment. Raises ToolError that says when it will be back."""
        if self._process is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(START_S):
                    await self._up.wait()
        if self._process is None:
            pause_ms = max(0, round((self._back_at - time.monotonic()) * 1000))
            raise error("upstream.failed", f"{self._name} is not running; it is started again", retry_after_ms=pause_ms)
        return self._process

    # -- the life of the process --

    async def _spawn(self) -> Process:
        program = self._program
        environment = {name: template.beginning for name, template in program.environment.items()}
        return await spawn(program.argv, program.cwd, environment, line_bytes=program.max_line_bytes)

    async def _keep(self, process: Process | None) -> None:
        pause_s = 0.0
        while True:
            began = time.monotonic()
            if process is not None:
                pause_s = pause_s if await self._live(process) < GOOD_LIFE_S else 0.0
            self._back_at = time.monotonic() + pause_s
            await asyncio.sleep(pause_s)
            pause_s = min(MAX_PAUSE_S, pause_s * 2) if pause_s else FIRST_PAUSE_S
            try:
                process = await self._spawn()
            except BusError as problem:
                log.warning("%s: %s", self._name, problem.info.message)
                process = None
            log.debug("%s was started again after %.1f s", self._name, time.monotonic() - began)

    async def _live(self, process: Process) -> float:
        """Hears a process until it ends; how long that was."""
        began = time.monotonic()
        tail = Tail([one for template in self._program.environment.values() for one in template.secrets])
        assert process.stderr is not None
        errors = asyncio.create_task(tail.read(process.stderr), name=f"errors of {self._name}")
        self._process = process
        self._up.set()
        why: BusError | None = None
        try:
            why = await self._until_end(process)
            self._process = None
            self._up.clear()
            await kill(process)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(START_S):
                    await asyncio.shield(errors)
        finally:
            await end(errors)
            why = why or ended(self._name, process.returncode, tail)
            for answer in list(self._asked.values()):
                if not answer.done():
                    answer.set_exception(error("upstream.failed", why.info.message, **why.info.details))
                    answer.add_done_callback(_forget)
        log.warning("%s; it is started again", why.info.message)
        return time.monotonic() - began

    async def _until_end(self, process: Process) -> BusError | None:
        """Hears the process until it has ended, also when children of it hold its output open."""
        hearing = asyncio.create_task(self._hear(process), name=f"output of {self._name}")
        try:
            while not hearing.done():
                await asyncio.wait([hearing], timeout=LOOK_S)
                if process.returncode is not None and not hearing.done():
                    await asyncio.wait([hearing], timeout=LOOK_S)
                    break
            return hearing.result() if hearing.done() else None
        finally:
            await end(hearing)

    async def _hear(self, process: Process) -> BusError | None:
        """Takes answers until the output ends; the reason when that is not the process's own end."""
        assert process.stdout is not None
        told = 0
        while True:
            try:
                line = await process.stdout.readuntil(b"\n")
            except asyncio.IncompleteReadError:
                return None
            except asyncio.LimitOverrunError:
                return error(
                    "upstream.failed", f"{self._name} printed a line over {self._program.max_line_bytes} bytes"
                )
            if not self._take(line) and told < MAX_TOLD:
                told += 1
                shown = one_line(line[:200].decode("utf-8", "replace"), 200)
                log.warning("%s printed a line that answers nothing: %s", self._name, shown)

    def _take(self, line: bytes) -> bool:
        """Whether a line is an answer that somebody has asked for."""
        try:
            said = orjson.loads(line)
        except orjson.JSONDecodeError:
            return False
        answer = self._asked.get(said["id"]) if isinstance(said, dict) and isinstance(said.get("id"), str) else None
        if answer is None or answer.done():
            return False
        if said.get("error") is None:
            answer.set_result(said.get("data"))
        else:
            answer.set_exception(_failure(said["error"], self._name))
        return True


def _write(process: Process, line: dict[str, Any]) -> None:
    assert process.stdin is not None
    # A closed pipe is told by the end of the process, with its reason.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, RuntimeError):
        process.stdin.write(orjson.dumps(line) + b"\n")


async def _drain(process: Process) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        await process.stdin.drain()


def _failure(said: Any, name: str) -> BusError:
    """What the program says of a failure; a code that is not in our table is `tool.execution_failed`."""
    if not isinstance(said, Mapping):
        return error("tool.execution_failed", f"{name}: {one_line(str(said), 1000)}")
    code, retryable = said.get("code"), said.get("retryable")
    known = code if isinstance(code, str) and code in TABLE else "tool.execution_failed"
    found = error(known, f"{name}: {one_line(str(said.get('message') or code), 1000)}")
    if isinstance(retryable, bool):
        found.info = ErrorInfo(found.info.code, found.info.message, found.info.details, retryable=retryable)
    return found


def _forget(answer: asyncio.Future[Any]) -> None:
    """Nobody will ask for it, and that is no mistake."""
    if not answer.cancelled():
        answer.exception()
