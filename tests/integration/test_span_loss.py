"""A receiver of spans that hangs or refuses costs spans, and nothing else (OBS-1)."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from bus import Agent, Bus, Draft, Settings
from bus.delivery.span_status import SpanStatus, span_statuses
from bus.doctor import Grade, examine
from bus.testing import settled

MESSAGES = 300


@pytest.fixture(params=["hangs", "refuses"])
def receiver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address whose socket takes connections and never answers, or one where nobody listens."""
    monkeypatch.setattr("bus.telemetry.spans.CLOSE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{listening.getsockname()[1]}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "8" if request.param == "hangs" else "1")
        if request.param == "refuses":
            listening.close()
        yield request.param


async def test_it_slows_nothing_and_loses_no_message(
    settings: Settings, receiver: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker, seen = Agent("worker"), set[int]()

    @worker.on("job")
    async def job(payload: Any) -> None:
        seen.add(payload["number"])

    async with Bus.connect("caller", settings=settings) as bus, worker.running(settings):
        began = time.monotonic()
        await bus.send_many(Draft("worker", "job", {"number": number}) for number in range(MESSAGES))
        await settled(bus, 20)
        took_s = time.monotonic() - began
    assert seen == set(range(MESSAGES))
    # One attempt to send spans lasts eight seconds here; nothing has waited for it.
    assert took_s < 8
    assert "spans were not exported" in caplog.text


async def test_the_doctor_names_who_loses_spans(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are lost in another process than the doctor's; here in another service."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{listening.getsockname()[1]}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.3")
    monkeypatch.setattr("bus.telemetry.spans.CLOSE_S", 0.5)
    worker = Agent("worker")

    @worker.on("job")
    async def job(payload: Any) -> None: ...

    async def status_of(service: str) -> SpanStatus | None:
        return next((one for one in await span_statuses(bus.connection, within_s=3) if one.service == service), None)

    async with Bus.connect("caller", settings=settings) as bus, worker.running(settings):
        before = await status_of("worker")
        assert before is not None
        assert (before.exported, before.dropped) == (0, 0)
        await bus.send("worker", "job", {})
        while (now := await status_of("worker")) is None or not now.dropped:
            await asyncio.sleep(0.05)
        found = [one for one in await examine(bus.connection) if "spans lost" in one.message]
    assert any(one.message.startswith("worker ") and one.grade is Grade.BAD and one.mend for one in found)


async def test_services_that_record_nothing_are_not_asked(settings: Settings) -> None:
    async with Bus.connect("caller", settings=settings) as bus:
        assert await span_statuses(bus.connection, within_s=0.1) == []
        # A stranger's nonsense is nobody's status.
        subscription = await bus.connection.subscribe(
            bus.connection.subjects.span_status,
            lambda message: answers.append(asyncio.ensure_future(bus.connection.publish(message.reply, b"nonsense"))),
        )
        answers: list[asyncio.Future[None]] = []
        assert await span_statuses(bus.connection, within_s=0.2) == []
        await asyncio.gather(*answers)
        await subscription.drain()
    assert len(answers) == 1
