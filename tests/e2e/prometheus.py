"""A real Prometheus of the test's own, and what the expressions of the dashboard and the alerts ask for."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ROOT

RULES = ROOT / "ops" / "prometheus" / "alerts.yml"
RULES_TEST = ROOT / "ops" / "prometheus" / "alerts_test.yml"
CONFIGURATION = ROOT / "ops" / "prometheus" / "prometheus.yml"
DASHBOARD = ROOT / "ops" / "grafana" / "dashboard.json"
START_S = 20.0


class Prometheus:
    """A running Prometheus, by its API."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression now; each has its labels in `metric`."""
        try:
            with urllib.request.urlopen(
                f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}", timeout=5
            ) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
                return found
        except urllib.error.HTTPError as refused:
            with refused:
                raise AssertionError(f"{expression}: {refused.read().decode()}") from refused


def program(name: str) -> str:
    """The path of `prometheus` or `promtool`; the test fails, saying what to install, when it is missing."""
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"there is no {name}; install Debian's package prometheus", pytrace=False)
    return found


@contextmanager
def running_prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    """Starts one with our configuration and rules on a free port; it scrapes `target` every second."""
    configuration = CONFIGURATION.read_text("utf-8")
    for ours, changed in {
        "127.0.0.1:9464": target,
        "_interval: 15s": "_interval: 1s",
        "- alerts.yml": f"- {RULES}",
    }.items():
        assert ours in configuration
        configuration = configuration.replace(ours, changed)
    (folder / "prometheus.yml").write_text(configuration, "utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    prometheus = Prometheus(port)
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        told = folder / "prometheus.log"
        until(prometheus.is_ready, START_S, lambda: f"Prometheus does not start: {told.read_text('utf-8')}")
        yield prometheus
    finally:
        process.kill()
        process.wait()


def until(condition: Callable[[], bool], within_s: float, otherwise: Callable[[], str]) -> None:
    """Waits for a condition; fails with what `otherwise` says."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.1)


@dataclass(frozen=True, slots=True)
class Use:
    """One metric in an expression, with the labels that the expression needs of it."""

    metric: str
    labels: frozenset[str]


_STRING = re.compile(r'"[^"]*"')
_SELECTOR = re.compile(r"([a-z_][a-z0-9_]*)\{([^}]*)\}")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
_NAME = re.compile(r"\b[a-z_][a-z0-9_]*\b(?!\s*\()")
_WORDS = frozenset({"and", "or", "unless", "bool", "offset", "m", "h", "s"})


def uses(expression: str) -> set[Use]:
    """The metrics of an expression with their labels, those by which it groups included."""
    bare = _STRING.sub('""', expression)
    labels = {name.strip() for found in _GROUPING.findall(bare) for name in found.split(",")}
    bare = _GROUPING.sub("", bare)
    own: dict[str, set[str]] = {}
    for metric, matchers in _SELECTOR.findall(bare):
        own.setdefault(metric, set()).update(re.findall(r"[a-z_]+(?=\s*[=!])", matchers))
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", bare)
    metrics = {name for name in _NAME.findall(bare) if name not in _WORDS}
    return {Use(metric, frozenset(labels | own.get(metric, set()))) for metric in metrics}


def alert_rules() -> dict[str, str]:
    """The expressions of the alert rules by name; promtool checks the file's form, this only reads it."""
    rules = re.split(r"^ +- alert: ", RULES.read_text("utf-8"), flags=re.MULTILINE)[1:]
    found = {}
    for rule in rules:
        expression = re.search(r"expr: (?:>-\n)?(.*?)\n +(?:for|labels):", rule, re.DOTALL)
        assert expression is not None, rule
        found[rule.split()[0]] = " ".join(expression[1].split())
    return found


def dashboard_expressions() -> list[str]:
    """The expressions of the panels, with any agent for the variable."""
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    return [target["expr"].replace("$agent", ".*") for panel in panels for target in panel["targets"]]
