"""A replica answers NATS micro discovery on all nine subjects (REG-12, ADR-32)."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from bus import Agent, Bus, Settings
from bus.broker.subjects import micro

VERBS = ("PING", "INFO", "STATS")


async def asked(bus: Bus, subject: str) -> dict[str, Any]:
    answer: dict[str, Any] = orjson.loads((await bus.connection.request(subject, timeout_s=5)).data)
    return answer


async def test_it_answers_all_its_service_and_itself_with_the_same(bus: Bus, settings: Settings) -> None:
    agent = Agent(settings.namespace)  # everybody on a server answers `$SRV.PING`, so a name of its own

    @agent.capability("text.length", idempotent=True, description="How long a text is.")
    async def length(text: str) -> int:
        return len(text)

    async with agent.running(settings):
        await bus.call("text.length", {"text": "abc"})
        found = await asked(bus, f"$SRV.INFO.{agent.name}")
        assert found["type"] == "io.nats.micro.v1.info_response"
        assert found["description"] == "can be called for text.length"
        for verb in VERBS:
            one, same = [await asked(bus, where) for where in micro(verb, agent.name, found["id"])[1:]]
            assert one == same
            assert one["type"] == f"io.nats.micro.v1.{verb.lower()}_response"
        (counted,) = (await asked(bus, f"$SRV.STATS.{agent.name}"))["endpoints"]
        assert (counted["num_requests"], counted["num_errors"], counted["last_error"]) == (1, 0, "")
    with pytest.raises(Exception, match="no responders"):
        await asked(bus, f"$SRV.PING.{agent.name}")


async def test_a_thousand_long_names_fit_into_an_answer(bus: Bus, settings: Settings) -> None:
    agent = Agent(settings.namespace)
    for number in range(1000):
        name = f"some_{'long' * 20}_family.of_{'capabilities' * 2}_{number}"
        agent.capability(name, description="Long." * 65)(length_of)
    async with agent.running(settings):
        assert len((await asked(bus, f"$SRV.INFO.{agent.name}"))["endpoints"]) == 1000
        assert len((await asked(bus, f"$SRV.STATS.{agent.name}"))["endpoints"]) == 1000


async def length_of(text: str) -> int:
    return len(text)
