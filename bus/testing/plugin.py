"""The pytest plugin: fixtures for tests of agents against a real broker.

Loaded by the entry point of an installed envelope-bus, or with `-p bus.testing.plugin`. Asynchronous fixtures
work with pytest-asyncio in both of its modes, and without it with anyio's plugin.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bus.agent import Agent
from bus.client import Bus
from bus.config import Settings
from bus.envelope import Envelope
from bus.testing.ledger import Ledger
from bus.testing.replay import replay
from bus.testing.server import NatsServer
from bus.testing.waiting import settled
from bus.workflow.comparison import Comparison
from bus.workflow.recording import Recording

try:
    # In its strict mode pytest-asyncio takes only fixtures that are declared with its own decorator.
    from pytest_asyncio import fixture as async_fixture
except ImportError:
    async_fixture: Any = pytest.fixture  # type: ignore[no-redef]

Replay = Callable[..., Awaitable[Comparison]]
ReadLedger = Callable[..., Awaitable[Ledger]]


@pytest.fixture(scope="session")
def bus_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A nats-server that all tests of the session share (of the worker, with pytest-xdist)."""
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
def bus_own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A nats-server of the test's own, to stop, kill, pause and restart."""
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
def bus_settings(bus_server: NatsServer, tmp_path: Path) -> Settings:
    """Settings of a bus that no other test uses, on the shared server; short waits, small streams."""
    return Settings.load(
        servers=bus_server.url,
        namespace=f"t{uuid.uuid4().hex[:12]}",
        store_dir=tmp_path / "bus",
        ack_wait_s=2,
        grace_s=2,
        publish_timeout_s=10,
        work_max_bytes=32 << 20,
        stream_max_bytes=8 << 20,
    )


@async_fixture
async def bus(bus_settings: Settings) -> AsyncIterator[Bus]:
    """A client named `tester` on that bus."""
    async with Bus.connect("tester", settings=bus_settings) as one:
        yield one


@pytest.fixture
def bus_ledger(bus: Bus) -> ReadLedger:
    """`ledger = await bus_ledger(accepted=[...])`: waits until all has settled, reads the ledger and checks it.

    `timeout_s` (default 10) bounds the wait; `accepted` as in `Ledger.read`.
    """

    async def read(*, accepted: Iterable[Envelope] = (), timeout_s: float = 10.0) -> Ledger:
        await settled(bus, timeout_s)
        ledger = await Ledger.read(bus, accepted=accepted)
        ledger.check()
        return ledger

    return read


@pytest.fixture
def bus_replay() -> Replay:
    """`found = await bus_replay("tests/brief.json", reviewer)`, then `found.check()`: a recorded workflow as a test.

    The file is made by `bus workflow replay WORKFLOW_ID --save FILE`; `ignore` and `timeout_s` as in
    `bus.testing.replay`.
    """

    async def run(recording: Recording | str | Path, agent: Agent, **options: Any) -> Comparison:
        if not isinstance(recording, Recording):
            recording = Recording.read(recording)
        return await replay(recording, agent, **options)

    return run
