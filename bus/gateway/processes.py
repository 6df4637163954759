"""Child processes: started without a shell in a group of their own, read within bounds, and ended for certain."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bus.errors import BusError, error
from bus.telemetry.redaction import HIDDEN, Redaction
from bus.text import one_line

# What a child gets of our environment; everything else, keys above all, it gets only when it is named.
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ")
MAX_TAIL_BYTES = 2000
END_S = 2.0

_REDACTION = Redaction()


async def spawn(argv: Sequence[str], cwd: Path, environment: Mapping[str, str], *, line_bytes: int = 65_536) -> Process:
    """Starts a program. Raises ToolError `upstream.failed` when that is not possible, which says why.

    Rejected `protocol.too_large` when the arguments are more than the system takes.
    """
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    try:
        return await asyncio.create_subprocess_exec(
            *argv, cwd=cwd, env={**inherited, **environment}, stdin=PIPE, stdout=PIPE, stderr=PIPE,
            start_new_session=True, limit=line_bytes,
        )  # fmt: skip
    except OSError as problem:
        if problem.errno == 7:  # E2BIG
            raise error("protocol.too_large", f"{argv[0]} takes no arguments that long; pass them by stdin") from None
        raise error("upstream.failed", f"{argv[0]} cannot be started: {problem.strerror}") from None
    except ValueError as problem:
        raise error("tool.validation_failed", f"{argv[0]}: an argument cannot be passed: {problem}") from None


def signal_group(process: Process, number: signal.Signals) -> None:
    """Sends a signal to a process and its children, as far as there are any left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


async def kill(process: Process) -> None:
    """Kills a process with its children, and waits until it is gone; bounded, also when it has daemons that stay."""
    signal_group(process, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            await process.wait()
    # A grandchild in a group of its own may hold the pipes open for ever.
    transport = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()


async def end_gently(process: Process) -> None:
    """Closes its input, then SIGTERM, then SIGKILL, with two seconds for each."""
    if process.stdin is not None:
        process.stdin.close()
    for number in (None, signal.SIGTERM):
        if number is not None:
            signal_group(process, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await process.wait()
        if process.returncode is not None:
            break
    await kill(process)


async def read_bounded(stream: asyncio.StreamReader, limit: int, name: str) -> bytes:
    """All of a stream. Raises Rejected `protocol.too_large` beyond `limit` bytes."""
    found = bytearray()
    while part := await stream.read(65_536):
        found += part
        if len(found) > limit:
            raise error("protocol.too_large", f"{name} printed more than {limit} bytes", limit=limit, size=len(found))
    return bytes(found)


async def feed(stream: asyncio.StreamWriter, data: bytes) -> None:
    """Writes all of it and closes; a program that does not read to the end is no failure of ours."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stream.write(data)
        await stream.drain()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stream.close()
        await stream.wait_closed()


class Tail:
    """The end of what a program writes to standard error; the rest is read and forgotten."""

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        self._secrets = tuple(secrets)
        self._kept = bytearray()

    async def read(self, stream: asyncio.StreamReader) -> None:
        """Reads to the end of the stream."""
        while part := await stream.read(65_536):
            self._kept = (self._kept + part)[-MAX_TAIL_BYTES:]

    @property
    def text(self) -> str:
        """It in one line, without secrets."""
        text = bytes(self._kept).decode("utf-8", "replace")
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return one_line(_REDACTION.text(text), MAX_TAIL_BYTES)


def ended(name: str, code: int | None, tail: Tail, retry_codes: Sequence[int] = ()) -> BusError:
    """The error for a program that ended as it should not: by a signal, or with an exit code."""
    said = f": {tail.text}" if tail.text else ""
    if code is None:
        return error("upstream.failed", f"{name} is being stopped{said}")
    details: dict[str, Any] = {"exit_code": code, "stderr": tail.text}
    if code < 0:
        try:
            by = signal.Signals(-code).name
        except ValueError:
            by = f"signal {-code}"
        return error("upstream.failed", f"{name} was ended by {by}{said}", **details)
    kind = "upstream.failed" if code in retry_codes else "tool.execution_failed"
    return error(kind, f"{name} ended with exit code {code}{said}", **details)
