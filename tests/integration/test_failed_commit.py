"""A completion that cannot be stored: nothing is acknowledged, the span and the log say so, the message comes again."""

from __future__ import annotations

import logging
from typing import Any

import orjson
import pytest

from bus import Agent, Bus, Message, Settings
from bus.broker.streams import StreamNames
from bus.telemetry.logs import LineFormatter
from bus.telemetry.redaction import Redaction
from bus.testing import settled
from tests.integration.otlp_receiver import Received
from tests.integration.test_dead_letters import stranger, until

__all__ = ["stranger"]


async def test_a_failed_group_is_on_its_spans_and_lines_and_comes_again(
    settings: Settings, stranger: Any, received: Received, caplog: pytest.LogCaptureFixture
) -> None:
    """DEL-2, OBS-1, OBS-5: two messages of one group, while the stream of completions is gone."""
    settings = settings.model_copy(update={"ack_wait_s": 1.0, "publish_timeout_s": 0.5, "grace_s": 0.0})
    worker, got = Agent("worker"), list[Message]()

    @worker.on("job", phase="execute")
    async def job(payload: Any, message: Message) -> None:
        got.append(message)

    async with Bus.connect("caller", settings=settings) as bus:
        workflow = bus.workflow("brief")
        async with worker.running(settings) as replica:
            await stranger.jetstream().delete_stream(StreamNames.of(settings.namespace).done)
            sent = [await workflow.send("worker", "job", {"number": number}) for number in range(2)]
            await until(lambda: len(got) >= 2 and "is not stored yet" in caplog.text)
        counted = {
            dict(labels)["bus.outcome"]: value
            for metric in replica.metrics.read()
            if metric.name == "messaging.client.consumed.messages"
            for labels, value in metric.values.items()
            if value
        }
        assert counted == {"unsettled": 2}
        async with worker.running(settings):
            await settled(bus, 20)
    assert sorted(message.message_id for message in got) == sorted(2 * [message.message_id for message in sent])
    spans = received.named("process worker.job")
    assert sorted((span["bus.attempt"], span["bus.settlement"]) for span in spans) == 2 * [(1, "failed")] + 2 * [
        (2, "ack")
    ]
    failed = [span for span in spans if span["bus.attempt"] == 1]
    assert all(span["events"] == ["settle_failed"] and span["error.type"] == "broker.unavailable" for span in failed)
    formatter = LineFormatter(as_json=True, redaction=Redaction())
    lines = [orjson.loads(formatter.format(one)) for one in caplog.records if "is not settled" in one.message]
    assert {line["level"] for line in lines} == {"warning"}
    assert {(line["trace_id"], line["workflow_id"], line["agent"]) for line in lines} == {
        (workflow.trace_id, workflow.id, "worker")
    }
    assert {line["span_id"] for line in lines} == {span["id"] for span in failed}
    assert {line["message_id"] for line in lines} == {message.message_id for message in sent}


async def test_its_line_names_the_trace_of_an_untraced_message_too(
    settings: Settings, stranger: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A foreign message without headers, nobody recording."""
    settings = settings.model_copy(update={"ack_wait_s": 1.0, "publish_timeout_s": 0.5, "grace_s": 0.0})
    worker, got = Agent("worker"), list[Message]()

    @worker.on("job")
    async def job(payload: Any, message: Message) -> None:
        got.append(message)

    subject = f"{settings.namespace}.v1.work.worker.normal.stranger.job"
    data = {
        "version": "1.2",
        "message_id": "m",
        "trace_id": "order 7",
        "from": "stranger",
        "to": "worker",
        "type": "job",
    }
    caplog.set_level(logging.WARNING, "bus.delivery")
    async with worker.running(settings):
        await stranger.jetstream().delete_stream(StreamNames.of(settings.namespace).done)
        await stranger.jetstream().publish(subject, orjson.dumps(data))
        await until(lambda: got and "is not stored yet" in caplog.text)
    (line,) = [one for one in caplog.records if "is not settled" in one.message]
    assert (line.__dict__["trace_id"], line.__dict__["message_id"]) == ("order 7", "m")
