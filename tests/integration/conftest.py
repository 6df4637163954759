"""The plugin's fixtures under the short names that our tests use."""

from __future__ import annotations

import pytest

from bus import Settings
from bus.testing import NatsServer
from tests.integration.otlp_receiver import received

__all__ = ["received"]


@pytest.fixture
def shared_server(bus_server: NatsServer) -> NatsServer:
    """A server that tests share; whoever wants to hurt one takes `server`."""
    return bus_server


@pytest.fixture
def server(bus_own_server: NatsServer) -> NatsServer:
    """A server of the test's own."""
    return bus_own_server


@pytest.fixture
def settings(bus_settings: Settings) -> Settings:
    """Settings of a bus that no other test uses, on the shared server."""
    return bus_settings
