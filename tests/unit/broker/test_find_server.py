"""Which nats-server the embedded broker runs, and what is said when there is none (OPS-1)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bus.broker.embedded import find_server
from bus.errors import BrokerError


@pytest.fixture
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every place that is searched is this one, and it is empty."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sysconfig.get_path", lambda *_: str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    return tmp_path


def _program(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_without_a_server_the_error_says_what_to_install(nothing_installed: Path) -> None:
    """OPS-1"""
    with pytest.raises(BrokerError, match=r"pip install 'envelope-bus\[embedded\]'") as caught:
        find_server()
    assert caught.value.info.code == "broker.unavailable"


@pytest.mark.parametrize("kind", ["missing", "a directory", "not executable"])
def test_a_named_server_that_cannot_be_run_is_named(nothing_installed: Path, kind: str) -> None:
    """OPS-1: a wrong setting is not made good with another server."""
    _program(nothing_installed / "nats-server")
    named = nothing_installed / "named"
    if kind == "a directory":
        named.mkdir()
    elif kind == "not executable":
        named.touch(0o644)
    with pytest.raises(BrokerError, match=f"BUS_NATS_SERVER names {named}"):
        find_server(str(named))


def test_the_named_one_comes_first_then_the_path_then_the_installed_one(
    nothing_installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-1"""
    installed = _program(nothing_installed / "nats-server")
    monkeypatch.setenv("PATH", os.devnull)
    assert find_server() == installed
    on_path = _program(nothing_installed / "on path" / "nats-server")
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find_server() == on_path
    named = _program(nothing_installed / "named")
    assert find_server(str(named)) == named
