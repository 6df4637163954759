"""Metrics and logs of a real run: counts, a scrape without a broker, ids on lines (OBS-4, OBS-5)."""

from __future__ import annotations

import asyncio
import io
import logging
import urllib.request
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from bus import Agent, Bus, Message, Settings
from bus.errors import BusError
from bus.telemetry.logs import LineFormatter, LineHandler
from bus.telemetry.prometheus import scrape_endpoint
from bus.telemetry.redaction import Redaction
from bus.testing import NatsServer, settled
from tests.integration.otlp_receiver import Received


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What all loggers say, from debug on, as JSON lines."""
    stream = io.StringIO()
    handler = LineHandler(stream)
    handler.setFormatter(LineFormatter(as_json=True, redaction=Redaction()))
    root, ours = logging.getLogger(), logging.getLogger("bus")
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield stream
    root.removeHandler(handler)
    root.setLevel(before)
    ours.setLevel(logging.NOTSET)


async def scraped(address: str) -> str:
    def get() -> str:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(get)


async def until_scraped(address: str, text: str) -> str:
    async with asyncio.timeout(15):
        while text not in (found := await scraped(address)):
            await asyncio.sleep(0.05)
    return found


async def until_scraped_without(address: str, text: str) -> None:
    async with asyncio.timeout(15):
        while text in await scraped(address):
            await asyncio.sleep(0.05)


async def test_a_scrape_answers_while_the_broker_is_away(server: NatsServer) -> None:
    settings = Settings.load(servers=server.url, metrics_interval_s=0.2, publish_timeout_s=1, grace_s=0)
    worker = Agent("worker", concurrency=1)
    release = asyncio.Event()

    @worker.on("job")
    async def job(payload: Any) -> None:
        await release.wait()

    async with Bus.connect("caller", settings=settings) as bus, worker.running(settings) as replica:
        with scrape_endpoint(lambda: [replica.metrics], host="127.0.0.1", port=0) as address:
            for number in range(3):
                await bus.send("worker", "job", {"number": number})
            found = await until_scraped(address, 'bus_queue_depth{bus_agent="worker",bus_lane="normal"} 2.0')
            assert 'bus_in_flight{bus_agent="worker"} 1.0' in found
            await until_scraped(address, 'bus_queue_oldest_age_seconds{bus_agent="worker",bus_lane="normal"}')
            server.kill()
            found = await until_scraped(address, 'bus_broker_connected{bus_agent="worker"} 0.0')
            assert "bus_queue_depth{" not in found
            assert 'bus_in_flight_limit{bus_agent="worker"} 1.0' in found
            server.start()
            await until_scraped(address, 'bus_broker_connected{bus_agent="worker"} 1.0')
        release.set()
        await settled(bus, 20)


async def test_the_queue_of_an_agent_that_nobody_runs_is_seen_by_others(settings: Settings) -> None:
    """A replica that is down reports nothing, so the others do. A client that left is no agent."""
    settings = Settings.load(**settings.model_dump() | {"metrics_interval_s": 0.1})
    worker, absent = Agent("worker"), Agent("absent")

    @absent.on("job")
    async def job(payload: Any) -> None: ...

    async with absent.running(settings):
        pass
    async with Bus.connect("caller", settings=settings) as bus, worker.running(settings) as replica:
        with scrape_endpoint(lambda: [replica.metrics], host="127.0.0.1", port=0) as address:
            for receiver in ("absent", "absent", "somebody_who_left"):
                await bus.send(receiver, "job", {})
            found = await until_scraped(address, 'bus_queue_unattended{bus_agent="absent"} 2.0')
            assert 'bus_queue_unattended{bus_agent="worker"} 0.0' in found
            assert "somebody_who_left" not in found
            async with absent.running(settings):
                await until_scraped_without(address, 'bus_queue_unattended{bus_agent="absent"}')


async def test_metrics_go_to_an_otlp_receiver(settings: Settings, received: Received) -> None:
    worker = Agent("worker")

    @worker.on("job", phase="execute")
    async def job(payload: Any) -> None: ...

    async with Bus.connect("caller", settings=settings) as bus, worker.running(settings):
        for number in range(3):
            await bus.send("worker", "job", {"number": number})
        await settled(bus, 20)
    last = {one["service"]: one for one in received.metrics}
    (process,) = [p for p in last["worker"]["messaging.process.duration"]["histogram"]["dataPoints"] if p["sum"]]
    assert process["count"] == "3"
    assert len(process["bucketCounts"]) == len(process["explicitBounds"]) + 1
    sent = last["caller"]["messaging.client.sent.messages"]["sum"]
    assert (sent["isMonotonic"], sent["aggregationTemporality"]) == (True, 2)
    assert [point["asInt"] for point in sent["dataPoints"]] == ["3"]


@pytest.mark.parametrize("sampler", ["always_on", "always_off"])
async def test_what_a_handler_logs_has_the_ids(
    settings: Settings, received: Received, lines: io.StringIO, monkeypatch: pytest.MonkeyPatch, sampler: str
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    worker, log = Agent("worker"), logging.getLogger("somebody.else")

    @worker.on("job")
    async def job(payload: Any, message: Message) -> None:
        log.info("in a task")
        await message.send("worker", "note", {"password": "hunter2"})

    @worker.on("note")
    def note(payload: Any) -> None:
        log.info("in a thread")

    async with Bus.connect("caller", settings=settings) as bus, worker.running(settings):
        workflow = bus.workflow("brief")
        sent = await workflow.send("worker", "job", {})
        await settled(bus, 20)
        log.info("outside")
    assert "hunter2" not in lines.getvalue()
    said = [orjson.loads(line) for line in lines.getvalue().splitlines()]
    (task,) = [line for line in said if line["message"] == "in a task"]
    (thread,) = [line for line in said if line["message"] == "in a thread"]
    (outside,) = [line for line in said if line["message"] == "outside"]
    assert task["message_id"] == sent.message_id
    assert task["message_id"] != thread["message_id"]
    for line in (task, thread):
        assert (line["agent"], line["workflow_id"], line["trace_id"]) == ("worker", workflow.id, workflow.trace_id)
        assert len(line["span_id"]) == 16
    assert "message_id" not in outside
    (whole,) = [line for line in said if line["message"] == "received note from worker"]
    assert whole["envelope"]["payload"] == {"password": "[redacted]"}
    assert whole["envelope"]["message_id"] == whole["message_id"] == thread["message_id"]
    (told,) = [line for line in said if line["message"] == "sent note to worker"]
    assert told["message_id"] == sent.message_id
    assert "traceparent" in told["headers"]


async def test_what_a_capability_logs_has_the_ids_of_its_call(settings: Settings, lines: io.StringIO) -> None:
    """Also in a thread; the next call of the same worker has its own; request and result are whole at debug."""
    worker, log = Agent("worker", call_concurrency=1), logging.getLogger("somebody.else")

    @worker.capability("numbers.double", example={"number": 1})
    async def double(number: int) -> int:
        """Doubles."""
        log.info("doubling")
        return number * 2

    @worker.capability("numbers.halve", example={"number": 2})
    def halve(number: int) -> int:
        """Halves."""
        log.info("halving")
        raise ValueError("password=hunter2")

    async with Bus.connect("caller", settings=settings) as bus, worker.running(settings):
        for _ in range(2):
            assert (await bus.call("numbers.double", {"number": 4})).data == 8
        with pytest.raises(BusError):
            await bus.call("numbers.halve", {"number": 4})
    assert "hunter2" not in lines.getvalue()
    said = [orjson.loads(line) for line in lines.getvalue().splitlines()]
    received = [line for line in said if line["message"] == "received tool_call_request from caller"]
    ids = [line["envelope"]["message_id"] for line in received]
    assert len(set(ids)) == 3
    assert [line["message_id"] for line in said if line["message"] in ("doubling", "halving")] == ids
    results = [line for line in said if line["message"] == "answered tool_call_result to caller"]
    assert [line["message_id"] for line in results] == ids
    assert [line["envelope"]["payload"]["ok"] for line in results] == [True, True, False]
    assert all(line["agent"] == "worker" for line in (*received, *results))
