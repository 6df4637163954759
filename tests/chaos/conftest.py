"""Chaos tests hurt servers of their own."""

from tests.integration.conftest import server, shared_server

__all__ = ["server", "shared_server"]
