"""An OTLP endpoint of the test's own, and the spans that arrived there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson
import pytest


def plain(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    """OTLP attributes as a dict; its JSON form writes integers as strings."""
    read = {"stringValue": str, "intValue": int, "boolValue": bool, "doubleValue": float}
    return {one["key"]: read[kind](value) for one in attributes for kind, value in one["value"].items()}


class Received:
    """The spans that arrived, flattened."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.metrics: list[dict[str, Any]] = []
        self.endpoint = ""

    def add(self, body: bytes) -> None:
        if "resourceMetrics" in orjson.loads(body):
            self._add_metrics(body)
        else:
            self._add_spans(body)

    def _add_metrics(self, body: bytes) -> None:
        """The newest of each service, its metrics by name."""
        for resource in orjson.loads(body)["resourceMetrics"]:
            found = {one["name"]: one for scope in resource["scopeMetrics"] for one in scope["metrics"]}
            self.metrics.append({"service": plain(resource["resource"]["attributes"])["service.name"], **found})

    def _add_spans(self, body: bytes) -> None:
        for resource in orjson.loads(body)["resourceSpans"]:
            about = plain(resource["resource"]["attributes"])
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
                    self.spans.append(
                        {
                            "service": about["service.name"],
                            "name": span["name"],
                            "kind": span["kind"],
                            "start": int(span["startTimeUnixNano"]),
                            "end": int(span["endTimeUnixNano"]),
                            "trace": span["traceId"],
                            "id": span["spanId"],
                            "parent": span.get("parentSpanId", ""),
                            "links": [link["spanId"] for link in span.get("links", [])],
                            "instance": about["service.instance.id"],
                            "events": [event["name"] for event in span.get("events", [])],
                            "error": span.get("status", {}).get("code") == 2,
                            **plain(span["attributes"]),
                        }
                    )

    def named(self, name: str) -> list[dict[str, Any]]:
        return [span for span in self.spans if span["name"] == name]


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    """An OTLP endpoint of the test's own, named in the environment."""
    found = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.add(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield found
        server.shutdown()
        thread.join()
