"""A background task of a replica that fails ends the replica, loudly (OPS-5)."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bus import Agent, Bus, BusError, Draft, Settings
from bus.broker.pull import PullLoop
from bus.delivery.commits import Commits
from bus.delivery.dedupe import Dedupe
from bus.delivery.peers import Peers
from bus.delivery.repair import Repair

ROOT = Path(__file__).parents[2]
STRIKES = [
    (Commits, "_commit", "commit what worker completed"),
    (Dedupe, "_learn", "completions of worker"),
    (PullLoop, "_request", "pull "),
    (Repair, "_is_settled", "repair worker"),
    (Peers, "_record", "peers of worker"),
]


def worker() -> Agent:
    agent = Agent("worker")

    @agent.on("job")
    async def job(payload: Any) -> None: ...

    return agent


@pytest.mark.parametrize(("owner", "name", "task"), STRIKES, ids=[owner.__name__ for owner, _, _ in STRIKES])
async def test_a_task_that_fails_ends_the_replica(
    owner: type, name: str, task: str, bus: Bus, settings: Settings, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """The body is cancelled, the error names the task, and the log has the traceback."""

    def fail(*_: object, **__: object) -> Any:
        monkeypatch.undo()  # once, so that the rest can stop in good order
        raise KeyError("a bug")

    quick = settings.model_copy(update={"dedupe_window_s": 3.0}) if owner is Peers else settings

    async def run() -> None:
        async with asyncio.timeout(20), worker().running(quick):
            monkeypatch.setattr(owner, name, fail)
            # So many that the consumer has to ask for more.
            await bus.send_many([Draft("worker", "job", {})] * (200 if owner is PullLoop else 1))
            if owner is Repair:
                subject = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{settings.namespace.upper()}_WORK.worker"
                await bus.connection.publish(subject, b"{}")
            await asyncio.sleep(15)

    with caplog.at_level(logging.ERROR), pytest.raises(BusError, match=f"background task '{task}") as failed:
        await run()
    assert failed.value.info.code == "internal.error"
    assert isinstance(failed.value.__cause__, KeyError)
    assert any(record.exc_info and task in record.getMessage() for record in caplog.records)


async def test_a_cancellation_from_elsewhere_stays_one(settings: Settings) -> None:
    """Only a failed task turns into an error."""

    async def run() -> None:
        async with worker().running(settings):
            await asyncio.sleep(60)

    running = asyncio.create_task(run())
    await asyncio.sleep(0.5)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_bus_run_ends_with_a_message(settings: Settings, tmp_path: Path) -> None:
    """The process does not stand there half dead: exit code 1 and one line; the supervisor starts another."""
    (tmp_path / "broken.py").write_text(
        "from bus import Agent\n"
        "from bus.delivery.commits import Commits\n"
        "async def fail(self, group):\n"
        "    raise KeyError('a bug')\n"
        "Commits._commit = fail\n"
        "worker = Agent('worker')\n"
        "@worker.on('job')\n"
        "async def job(payload: dict) -> None: ...\n"
    )
    async with Bus.connect("tester", settings=settings) as bus:
        await bus.send("worker", "job", {})
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "bus", "run", "broken:worker", "--servers", settings.servers, "--grace", "1"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "BUS_NAMESPACE": settings.namespace, "PATH": ""},
        capture_output=True,
        text=True,
        timeout=25,
    )
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].startswith("error: the background task 'commit what worker completed' of worker")
    assert "Traceback" in ran.stderr
