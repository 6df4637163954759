"""Chaos tests hurt servers of their own."""

from tests.integration.conftest import server

__all__ = ["server"]
