"""The recorder never waits, and counts what it loses (OBS-1)."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson
import pytest

from bus.config import SettingsError
from bus.telemetry import recorder
from bus.telemetry.otlp import OtlpJsonExporter
from bus.telemetry.posting import endpoint
from bus.telemetry.recorder import Recorder, SpanRecord


def span(name: str = "send a.b") -> SpanRecord:
    return SpanRecord(name, 4, "1" * 32, "2" * 16, "", "", (), {"n": 1, "ratio": 0.5, "ok": True})


class Receiver:
    """An OTLP endpoint that answers as told."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.names: list[str] = []
        self.errors: list[str] = []
        self.headers: dict[str, str] = {}


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = orjson.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = found.answers.pop(0) if found.answers else 200
            if status == 200:
                found.names += [one["name"] for one in body["resourceSpans"][0]["scopeSpans"][0]["spans"]]
                found.errors += [
                    one["status"]["message"]
                    for one in body["resourceSpans"][0]["scopeSpans"][0]["spans"]
                    if "status" in one
                ]
                found.headers = {name.lower(): value for name, value in self.headers.items()}
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
        yield found
        server.shutdown()
        thread.join()


def exporter() -> OtlpJsonExporter:
    url = endpoint()
    assert url is not None
    return OtlpJsonExporter(url, {"service.name": "test"})


def test_everything_added_before_close_arrives(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=blue%20team")
    one = Recorder(exporter())
    for number in range(3000):
        one.add(span(str(number)))
    one.close(5)
    assert (one.exported, one.dropped) == (3000, 0)
    assert sorted(receiver.names, key=int) == [str(number) for number in range(3000)]
    assert receiver.headers["x-team"] == "blue team"


def test_a_busy_receiver_is_asked_again(receiver: Receiver) -> None:
    receiver.answers = [503, 429]
    assert exporter().export([span()])
    assert receiver.names == ["send a.b"]


def test_a_refusal_is_final_and_counted(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    receiver.answers = [400] * 10
    one = Recorder(exporter())
    one.add(span())
    with caplog.at_level(logging.WARNING):
        one.close(5)
    assert one.dropped == 1
    assert "HTTP 400" in caplog.text
    assert "1 spans were not exported" in caplog.text


def test_a_full_queue_drops_and_counts(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "QUEUE_SPANS", 10)
    monkeypatch.setattr(recorder, "INTERVAL_S", 60)
    one = Recorder(exporter())
    for _ in range(25):
        one.add(span())
    assert one.dropped == 15
    one.close(5)
    assert (one.exported, one.dropped) == (10, 15)


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ({}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1/base/"}, "http://a:1/base/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://a:1/x", "OTEL_EXPORTER_OTLP_ENDPOINT": "b"}, "http://a:1/x"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1", "OTEL_SDK_DISABLED": "true"}, None),
    ],
)
def test_endpoints(environment: dict[str, str], url: str | None) -> None:
    assert endpoint(environment) == url


def test_an_endpoint_that_is_no_address_is_refused() -> None:
    with pytest.raises(ValueError, match="OTEL_EXPORTER_OTLP_ENDPOINT"):
        OtlpJsonExporter("jaeger:4318", {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ENDPOINT", "http://127.0.0.1:port"),
        ("ENDPOINT", "http://"),
        ("ENDPOINT", "http://a b:4318"),
        ("TIMEOUT", "abc"),
        ("TIMEOUT", "-4"),
        ("TIMEOUT", "nan"),
        ("TRACES_TIMEOUT", "10000"),
        ("HEADERS", "s3cret"),
        ("HEADERS", "x-key=s3cret%0d%0aHost: b"),
        ("TRACES_HEADERS", "x key=s3cret"),
    ],
)
def test_what_could_never_be_sent_is_refused_at_the_start(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that sends would end on it, and all spans with it (OBS-1)."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", value)
    with pytest.raises(SettingsError, match=f"OTEL_EXPORTER_OTLP_{name}") as refused:
        exporter()
    assert "s3cret" not in str(refused.value)


def test_a_receiver_that_speaks_no_http_costs_its_spans_and_not_the_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Such as the port for gRPC (OBS-1)."""

    def answer() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=answer, daemon=True).start()
        one = Recorder(OtlpJsonExporter(f"http://127.0.0.1:{listening.getsockname()[1]}/v1/traces", {}))
        one.add(span())
        with caplog.at_level(logging.WARNING):
            one.close(10)
        listening.shutdown(socket.SHUT_RDWR)
    assert (one.exported, one.dropped, one.counts().waiting) == (0, 1, 0)
    assert "no HTTP answer" in caplog.text


def test_the_error_of_a_span_leaves_without_its_secrets(receiver: Receiver) -> None:
    """OBS-5 holds for what goes to a receiver, too."""
    failed = span()
    failed.error = "postgres://u:t0psecret@db/x refused Bearer abcdef123456"
    assert exporter().export([failed])
    assert receiver.errors == ["postgres://[redacted]@db/x refused Bearer [redacted]"]
