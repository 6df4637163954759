"""What the standard variables select, and what is said of what there is not (OBS-1, OBS-4)."""

from __future__ import annotations

import logging

import pytest

from bus.telemetry.posting import endpoint
from bus.telemetry.selection import misfits
from bus.telemetry.spans import Telemetry

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


@pytest.mark.parametrize(
    ("exporter", "is_sent", "said"),
    [
        ("", True, 0),
        ("otlp", True, 0),
        ("none", False, 0),
        (" OTLP , console", True, 1),
        ("console", False, 1),
        ("foo", True, 1),
    ],
)
@pytest.mark.parametrize("signal", ["traces", "metrics"])
def test_exporters(signal: str, exporter: str, is_sent: bool, said: int) -> None:
    """One that other SDKs have is no wish for OTLP; a word that nobody knows is ignored, as the standard says."""
    environment = {**ENDPOINT, f"OTEL_{signal.upper()}_EXPORTER": exporter}
    assert (endpoint(environment, signal=signal) is not None) is is_sent
    lines = misfits(environment)
    assert len(lines) == said
    assert all(f"OTEL_{signal.upper()}_EXPORTER" in line and "otlp or none" in line for line in lines)


def test_prometheus_is_a_scrape_and_needs_no_word() -> None:
    environment = {**ENDPOINT, "OTEL_METRICS_EXPORTER": "prometheus"}
    assert endpoint(environment, signal="metrics") is None
    assert endpoint(environment) is not None
    assert misfits(environment) == []


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"])
@pytest.mark.parametrize(("protocol", "said"), [("grpc", 1), ("htpp", 1), ("http/protobuf", 0), ("http/json", 0)])
def test_protocols(name: str, protocol: str, said: int) -> None:
    lines = misfits({**ENDPOINT, name: protocol})
    assert len(lines) == said
    assert misfits({name: protocol}) == []
    assert all(line.startswith(f"{name}={protocol!r}") and "4318" in line for line in lines)


async def test_a_service_says_it_when_it_starts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "foo")
    await Telemetry("writer", namespace="bus").close()
    (line,) = caplog.records
    assert line.levelno == logging.WARNING
    assert line.message.startswith("writer: OTEL_TRACES_EXPORTER: there is no exporter 'foo' here")
