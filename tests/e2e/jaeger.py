"""A real Jaeger of the test's own: its ports, its start and end, and what its API answers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ROOT

RUN = ROOT / "ops" / "jaeger" / "run"
START_S = 20.0
PORTS = ("OTLP_HTTP", "OTLP_GRPC", "QUERY", "QUERY_GRPC", "HEALTH")


@dataclass(frozen=True, slots=True)
class JaegerSpan:
    """One span as Jaeger stores it."""

    service: str
    name: str
    kind: str
    trace_id: str
    id: str
    parent_id: str
    links: tuple[tuple[str, str], ...]
    events: tuple[str, ...]
    is_error: bool
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]


class Jaeger:
    """A running Jaeger; `endpoint` takes spans, the rest asks its `/api/v3`."""

    def __init__(self, ports: dict[str, int]) -> None:
        self.endpoint = f"http://127.0.0.1:{ports['OTLP_HTTP']}"
        self.health = f"http://127.0.0.1:{ports['HEALTH']}/status"
        self._api = f"http://127.0.0.1:{ports['QUERY']}/api/v3"

    def services(self) -> set[str]:
        """The names of all services."""
        return set(self._get("/services").get("services", []))

    def operations(self, service: str) -> set[str]:
        """The names of the spans of one service."""
        found = self._get(f"/operations?{urllib.parse.urlencode({'service': service})}")
        return {one["name"] for one in found.get("operations", [])}

    def trace(self, trace_id: str) -> list[JaegerSpan]:
        """The spans of one trace; none when there is no such trace."""
        return _spans(self._get(f"/traces/{trace_id}"))

    def search(self, service: str, operation: str) -> list[JaegerSpan]:
        """The spans of the traces of the last hour that have a span of this service and name."""
        now = time.time()
        query = {
            "query.service_name": service,
            "query.operation_name": operation,
            "query.start_time_min": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now - 3600)),
            "query.start_time_max": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now + 60)),
            "query.num_traces": "20",
        }
        return _spans(self._get(f"/traces?{urllib.parse.urlencode(query)}"))

    def _get(self, path: str) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(self._api + path, timeout=5) as answer:
                found: dict[str, Any] = json.loads(answer.read())
                return found
        except urllib.error.HTTPError as refused:
            with refused:
                if refused.code == 404:
                    return {}
                raise AssertionError(f"Jaeger answers {path} with {refused.code}: {refused.read()!r}") from refused


@contextmanager
def running_jaeger(folder: Path) -> Iterator[Jaeger]:
    """Starts one on free ports; the test fails, saying what to run, when it has not been built."""
    if subprocess.run([RUN, "--path"], capture_output=True, check=False).returncode:
        pytest.fail("there is no Jaeger to test with; run: ops/jaeger/run --build", pytrace=False)
    ports = _free_ports()
    jaeger = Jaeger(ports)
    variables = {f"JAEGER_{name}_PORT": str(port) for name, port in ports.items()}
    with (folder / "jaeger.log").open("wb") as log:
        process = subprocess.Popen([RUN], env=os.environ | variables, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_S
        while not _is_healthy(jaeger.health):
            told = (folder / "jaeger.log").read_text("utf-8")
            assert process.poll() is None, f"Jaeger ended: {told}"
            assert time.monotonic() < deadline, f"Jaeger does not start: {told}"
            time.sleep(0.1)
        yield jaeger
    finally:
        # Its spans are in memory only, and a soft stop takes it ten seconds.
        process.kill()
        process.wait()


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _free_ports() -> dict[str, int]:
    with ExitStack() as stack:
        sockets = {name: stack.enter_context(socket.socket()) for name in PORTS}
        for one in sockets.values():
            one.bind(("127.0.0.1", 0))
        return {name: int(one.getsockname()[1]) for name, one in sockets.items()}


def _spans(found: dict[str, Any]) -> list[JaegerSpan]:
    spans = []
    for resource in found.get("result", {}).get("resourceSpans", []):
        about = _plain(resource["resource"]["attributes"])
        for scope in resource["scopeSpans"]:
            spans += [_span(about["service.name"], one) for one in scope["spans"]]
    return spans


def _span(service: str, span: dict[str, Any]) -> JaegerSpan:
    return JaegerSpan(
        service=service,
        name=span["name"],
        kind=str(span.get("kind", "")),
        trace_id=span["traceId"],
        id=span["spanId"],
        parent_id=span.get("parentSpanId", ""),
        links=tuple((link["traceId"], link["spanId"]) for link in span.get("links", [])),
        events=tuple(event["name"] for event in span.get("events", [])),
        is_error=str(span.get("status", {}).get("code", "")) in ("2", "STATUS_CODE_ERROR"),
        start_ns=int(span["startTimeUnixNano"]),
        end_ns=int(span["endTimeUnixNano"]),
        attributes=_plain(span.get("attributes", [])),
    )


def _plain(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in attributes}
