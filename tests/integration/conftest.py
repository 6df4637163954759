"""One real server for each test worker, and settings of a bus of its own for each test."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bus import Bus, Settings
from tests.servers import NatsServer


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server that tests share; whoever wants to hurt one takes `server`."""
    one = NatsServer(tmp_path_factory.mktemp("nats"))
    one.start()
    yield one
    one.stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    """A server of the test's own."""
    one = NatsServer(tmp_path)
    one.start()
    yield one
    one.stop()


@pytest.fixture
def settings(shared_server: NatsServer) -> Settings:
    """Settings of a bus that no other test uses, on the shared server."""
    return Settings.load(
        servers=shared_server.url,
        namespace=f"t{uuid.uuid4().hex[:12]}",
        ack_wait_s=2,
        grace_s=2,
        publish_timeout_s=10,
        work_max_bytes=32 << 20,
    )


@pytest.fixture
async def bus(settings: Settings) -> AsyncIterator[Bus]:
    """A client on that bus."""
    async with Bus.connect("tester", settings=settings) as one:
        yield one
