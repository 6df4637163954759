"""The load that the chaos tests put on the bus, and workers in processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

from bus import Agent, Bus, Envelope, Message, Settings
from bus.testing import Ledger, NatsServer, settled

ROOT = Path(__file__).parents[2]
WORK_MAX_BYTES = 32 << 20


def settings_for(url: str, **overrides: object) -> Settings:
    """Settings for a server that gets hurt: short waits, so that a lost message comes again soon."""
    return Settings.load(
        **{"servers": url, "ack_wait_s": 2, "publish_timeout_s": 25, "work_max_bytes": WORK_MAX_BYTES, **overrides}
    )


class Chain:
    """Two agents; each message to the first ends in one at the last. `ended` counts what arrived there."""

    def __init__(self) -> None:
        self.first, self.last = Agent("first"), Agent("last")
        self.ended = Counter[int]()

        @self.first.on("job")
        async def job(payload: dict[str, int], message: Message) -> None:
            await asyncio.sleep(0.005)
            await message.send("last", "part", payload)

        @self.last.on("part")
        async def part(payload: dict[str, int]) -> None:
            self.ended[payload["n"]] += 1

    @contextlib.asynccontextmanager
    async def running(self, settings: Settings) -> AsyncIterator[Bus]:
        """Both agents and a client on one server."""
        async with (
            Bus.connect("load", settings=settings) as bus,
            self.first.running(settings),
            self.last.running(settings),
        ):
            yield bus

    async def publish(self, bus: Bus, count: int, *, pause_s: float = 0.0) -> list[Envelope]:
        """Sends `count` messages one after another; returns those that were accepted: all."""
        accepted = []
        for n in range(count):
            accepted.append(await bus.send("first", "job", {"n": n}))
            if pause_s:
                await asyncio.sleep(pause_s)
        return accepted

    async def check(self, bus: Bus, accepted: list[Envelope]) -> Ledger:
        """Waits for the end; nothing is lost, nothing doubled, nothing dead."""
        await settled(bus, 30)
        ledger = await Ledger.read(bus, accepted=accepted)
        ledger.check()
        assert not ledger.dead
        assert self.ended == Counter(range(len(accepted)))
        return ledger


class Workers:
    """Replicas of `worker:worker` in processes of their own, by the command line."""

    def __init__(
        self, folder: Path, server: NatsServer, source: str, *, ack_wait_s: float = 1, grace_s: float = 5
    ) -> None:
        (folder / "worker.py").write_text(source)
        self.running: list[Process] = []
        self.lines: list[str] = []
        self._folder = folder
        self._readers: list[asyncio.Task[None]] = []
        self._arguments = ["run", "worker:worker", "--servers", server.url, "--grace", str(grace_s)]
        self._environment = {
            **os.environ,
            "BUS_ACK_WAIT_S": str(ack_wait_s),
            "BUS_WORK_MAX_BYTES": str(WORK_MAX_BYTES),
            "PYTHONPATH": str(ROOT),
        }

    async def __aenter__(self) -> Workers:
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self.running:
            if process.returncode is None:
                process.kill()
            await process.wait()
        await asyncio.gather(*self._readers)

    async def start(self) -> Process:
        """Starts one more; returns when it pulls."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bus", *self._arguments,
            cwd=self._folder, env=self._environment, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self.running.append(process)
        assert process.stderr is not None
        while b"running worker" not in (line := await process.stderr.readline()):
            assert line, "the worker ended before it ran"
        self._readers.append(asyncio.create_task(self._read(process.stderr)))
        return process

    async def stop(self, process: Process, number: signal.Signals = signal.SIGTERM, *, times: int = 1) -> int:
        """Sends the signal, `times` times a moment apart, and returns the exit code."""
        for _ in range(times):
            process.send_signal(number)
            await asyncio.sleep(0.3)
        return await asyncio.wait_for(process.wait(), 15)

    async def _read(self, stream: asyncio.StreamReader) -> None:
        # Read to the end, so that no worker ever waits for a full pipe.
        while line := await stream.readline():
            self.lines.append(line.decode())
