"""`make soak`: a chain of agents in many processes, a fault every few seconds, and the ledger exact at the end.

Not collected by pytest. The faults follow a seed; what each run of a handler met is explained in a table.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bus import Bus, BusError, Envelope, Settings
from bus.broker.survey import waiting_counts
from bus.envelope import derive_message_id
from bus.testing import Identity, Ledger, NatsServer, settled
from tests.link import Link

ROOT = Path(__file__).parents[2]
CHAIN = ("one", "two", "three")
SENDER = "soak"
IN_FLIGHT = 32
FAULTS = ("worker killed", "broker killed", "broker restarted", "link cut", "link stalled", "broker paused")
WEIGHTS = (5, 2, 1, 4, 1, 1)


@dataclass(frozen=True, slots=True)
class Options:
    """What one soak does."""

    messages: int
    replicas: int
    seed: int
    every_s: float
    pause_s: float
    timeout_s: float


class Reruns(NamedTuple):
    """How often each handler began; how often again; and how often again though no worker was killed in the middle."""

    started: Counter[Identity]
    again: dict[Identity, int]
    unexplained: dict[Identity, int]

    def rows(self, ledger: Ledger) -> list[tuple[str, int]]:
        """As a table."""
        again, unexplained = sum(self.again.values()), sum(self.unexplained.values())
        return [
            ("handler starts", self.started.total()),
            ("re-runs in all", again),
            ("  their worker was killed in the middle", again - unexplained),
            ("  nobody was killed", unexplained),
            ("completed by two runs that overlapped", len(ledger.overlapped)),
            ("started again after a recorded completion", sum(ledger.doubled.values())),
            ("handled, but never started (impossible)", len(ledger.handled - self.started.keys())),
        ]


class Fleet:
    """All replicas; one that has ended is started again."""

    def __init__(self, folder: Path, url: str, options: Options) -> None:
        self._folder = folder
        self._replicas = options.replicas
        self._url = url
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("BUS_", "OTEL_"))},
            "BUS_ACK_WAIT_S": "30",  # longer than any fault: who outlives it runs a message once more elsewhere
            "BUS_PUBLISH_TIMEOUT_S": "60",
            "BUS_CONNECT_TIMEOUT_S": "60",
            "PYTHONPATH": str(ROOT),
            "SOAK_STARTED": str(folder / "started"),
        }
        self.processes: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        self.killed: set[int] = set()

    def keep_alive(self) -> None:
        """Starts what does not run. Raises RuntimeError when a worker ended that nobody killed."""
        for agent in CHAIN:
            for number in range(self._replicas):
                process = self.processes.get((agent, number))
                if process is not None and process.poll() is None:
                    continue
                if process is not None and process.pid not in self.killed:
                    raise RuntimeError(f"a worker of {agent} ended with {process.returncode}; see {self._folder}")
                self.processes[agent, number] = self._start(agent, number)

    def kill_one(self, chance: random.Random) -> None:
        """SIGKILL to any of them."""
        victim = self.processes[chance.choice(sorted(self.processes))]
        self.killed.add(victim.pid)
        victim.kill()
        victim.wait()

    def end(self) -> None:
        """SIGTERM, then SIGKILL."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, agent: str, number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "bus", "run", f"tests.soak.workers:{agent}", "--servers", self._url]
        with (self._folder / f"{agent}-{number}.log").open("ab") as log:
            return subprocess.Popen(
                [*command, "--grace", "5", "--log-level", "warning"],
                cwd=ROOT, env=self._environment, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip


class Soak:
    """One run."""

    def __init__(self, folder: Path, options: Options, server: NatsServer, link: Link) -> None:
        self._options = options
        self._server = server
        self._link = link
        self._fleet = Fleet(folder, link.url, options)
        self._started = folder / "started"
        self._chance = random.Random(options.seed)
        self.faults = Counter[str]()

    async def run(self) -> tuple[Ledger, list[Envelope]]:
        """Loads, hurts, waits until all has settled, and reads the ledger."""
        settings = Settings.load(servers=self._server.url, publish_timeout_s=120, connect_timeout_s=60)
        self._fleet.keep_alive()
        try:
            async with Bus.connect(SENDER, settings=settings) as bus:
                hurting = asyncio.create_task(self._hurt())
                try:
                    accepted = await self._load(bus)
                    print(f"{_now()} all {len(accepted)} accepted; the rest drains", flush=True)
                    await self._until_little_is_left(bus, hurting)
                finally:
                    hurting.cancel()
                    await asyncio.gather(hurting, return_exceptions=True)
                    await self._mend()
                self._fleet.keep_alive()
                await settled(bus, self._options.timeout_s)
                return await Ledger.read(bus, accepted=_chained(accepted)), accepted
        finally:
            await asyncio.to_thread(self._fleet.end)

    def reruns(self) -> Reruns:
        """What the handlers noted when they began, against who was killed."""
        started, in_killed = Counter[Identity](), Counter[Identity]()
        senders = {agent: (SENDER, *CHAIN)[n] for n, agent in enumerate(CHAIN)}
        for line in self._started.read_text().splitlines():
            agent, message_id, _, pid = line.split()
            identity = Identity(agent, senders[agent], message_id)
            started[identity] += 1
            in_killed[identity] += int(pid) in self._fleet.killed
        again = {one: count - 1 for one, count in started.items() if count > 1}
        unexplained = {one: count - in_killed[one] for one, count in again.items() if count > in_killed[one]}
        return Reruns(started, again, unexplained)

    async def _load(self, bus: Bus) -> list[Envelope]:
        numbers, accepted = iter(range(self._options.messages)), list[Envelope]()

        async def send() -> None:
            for n in numbers:
                accepted.append(await bus.send(CHAIN[0], "step", {"n": n, "text": "x" * 300}))

        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(send())
        return accepted

    async def _until_little_is_left(self, bus: Bus, hurting: asyncio.Task[None]) -> None:
        """Goes on hurting until the chain is nearly through."""
        while not hurting.done():
            await asyncio.sleep(2)
            try:
                left = sum((await waiting_counts(bus.connection)).values())
            except BusError:
                continue  # the broker is being hurt
            print(f"{_now()} {left} messages left", flush=True)
            if left < self._options.messages // 50:
                return
        hurting.result()

    async def _hurt(self) -> None:
        while True:
            await asyncio.sleep(self._chance.uniform(0.5, 1.5) * self._options.every_s)
            self._fleet.keep_alive()
            (fault,) = self._chance.choices(FAULTS, WEIGHTS)
            self.faults[fault] += 1
            print(f"{_now()} {fault}", flush=True)
            if fault == "worker killed":
                await asyncio.to_thread(self._fleet.kill_one, self._chance)
            elif fault in ("broker killed", "broker restarted"):
                number = signal.SIGKILL if fault == "broker killed" else signal.SIGTERM
                await asyncio.to_thread(self._server.restart, number)
            elif fault == "link cut":
                self._link.cut(after_bytes=self._chance.randint(1, 50_000))
            elif fault == "link stalled":
                self._link.stall()
                await asyncio.sleep(self._chance.uniform(0.3, 0.6) * self._options.pause_s)
                self._link.resume()
            else:
                self._server.pause()
                await asyncio.sleep(self._chance.uniform(0.5, 1.0) * self._options.pause_s)
                self._server.resume()

    async def _mend(self) -> None:
        self._link.resume()
        if self._server.is_running:
            self._server.resume()
        else:
            await asyncio.to_thread(self._server.start)


def _chained(accepted: Sequence[Envelope]) -> list[Envelope]:
    """The messages that must exist: the accepted ones, and what each agent of the chain derives from them."""
    found = list(accepted)
    level, sender = [(one.message_id, one) for one in accepted], SENDER
    for agent, following in itertools.pairwise(CHAIN):
        level = [
            (derive_message_id(sender, message_id, agent, f"send:1:{following}:step"), one) for message_id, one in level
        ]
        sender = agent
        found += [
            Envelope(sender=agent, to=following, type="step", message_id=message_id, trace_id=one.trace_id, payload={})
            for message_id, one in level
        ]
    return found


def _now() -> str:
    return time.strftime("%H:%M:%S")


async def soak(options: Options) -> int:
    """Runs it; 0 when the ledger is exact."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="bus-soak-"))
    print(f"{options}; logs in {folder}", flush=True)
    with NatsServer(folder) as server:
        async with Link(server.port) as link:
            run = Soak(folder, options, server, link)
            ledger, _ = await run.run()
    reruns = run.reruns()
    rows = [(f"fault: {name}", count) for name, count in sorted(run.faults.items())]
    rows += [("messages in all", len(ledger.published)), *reruns.rows(ledger)]
    print("\n".join(f"{name:<62} {count:>8}" for name, count in rows))
    print(f"{ledger} after {time.monotonic() - began:.0f} s")
    wanted = options.messages * len(CHAIN)
    problems = ledger.problems()
    if reruns.unexplained:
        shown = ", ".join(map(str, sorted(reruns.unexplained)[:10]))
        problems.append(f"{len(reruns.unexplained)} handlers ran again that nobody had killed in the middle: {shown}")
    if len(ledger.published) != wanted or ledger.dead or ledger.waiting:
        problems.append(f"{wanted} should have been handled, and nothing else be left")
    print("\n".join(problems) or "exact: 0 lost, 0 handled twice, every re-run was killed in the middle", flush=True)
    return 1 if problems else 0


def main() -> int:
    """Reads the options."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument(
        "--messages", type=int, default=50_000, help="into a chain of three, so three times as many in all"
    )
    parser.add_argument("--replicas", type=int, default=4, help="processes of each agent")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=float, default=4.0, help="seconds between two faults, on average")
    parser.add_argument("--pause", type=float, default=20.0, help="longest pause of the broker, seconds")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for the rest to settle")
    given = parser.parse_args()
    return asyncio.run(
        soak(Options(given.messages, given.replicas, given.seed, given.every, given.pause, given.timeout))
    )


if __name__ == "__main__":
    sys.exit(main())
