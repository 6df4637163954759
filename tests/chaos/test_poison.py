"""All five classes of poison, between good messages: dead letters within their policy, no loop, no blocking (DEL-4)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import nats
import orjson
from pydantic import BaseModel

from bus import Agent, Bus, Message, Settings
from bus.errors import error
from bus.testing import Ledger, settled

GOOD = {
    "version": "1.2",
    "trace_id": "t",
    "from": "stranger",
    "to": "worker",
    "type": "order",
    "payload": {"number": 1},
}
ROUNDS = 10

POISON: dict[str, tuple[dict[str, Any] | bytes, str]] = {
    "undecodable": (b"{not json", "protocol.malformed"),
    "bad envelope": ({**GOOD, "trace_id": 5}, "protocol.malformed"),
    "no handler": ({**GOOD, "type": "invoice"}, "protocol.no_handler"),
    "invalid payload": ({**GOOD, "payload": {"number": "many"}}, "tool.validation_failed"),
    "failing handler": ({**GOOD, "type": "broken"}, "upstream.failed"),
}


class Order(BaseModel):
    number: int


async def test_poison_between_good_messages(bus: Bus, bus_settings: Settings) -> None:
    """Fifty poisonous and as many good ones through a replica that handles one at a time."""
    settings = bus_settings.model_copy(update={"max_attempts": 2})
    agent, tries, good = Agent("worker", concurrency=1), Counter[str](), Counter[str]()

    @agent.on("order")
    async def order(order: Order, message: Message) -> None:
        good[message.message_id] += 1

    @agent.on("broken")
    async def broken(payload: Any, message: Message) -> None:
        tries[message.message_id] += 1
        raise error("upstream.failed", "the service is down", retry_after_ms=10)

    stranger = await nats.connect(settings.servers)
    for n in range(ROUNDS):
        for name, (content, _) in POISON.items():
            data = content if isinstance(content, bytes) else orjson.dumps({**content, "message_id": f"{name} {n}"})
            type = content["type"] if isinstance(content, dict) else "order"
            await stranger.jetstream().publish(f"{settings.namespace}.v1.work.worker.normal.stranger.{type}", data)
            await stranger.jetstream().publish(
                f"{settings.namespace}.v1.work.worker.normal.stranger.order",
                orjson.dumps({**GOOD, "message_id": f"good {name} {n}"}),
            )
    await stranger.close()
    async with agent.running(settings):
        async with asyncio.timeout(10):
            while len(good) < ROUNDS * len(POISON):
                await asyncio.sleep(0.02)
        await settled(bus, 15)
        dead = [one async for one in bus.dead_letters.list()]
        ledger = await Ledger.read(bus)
    ledger.check()
    assert set(good.values()) == {1}
    assert Counter(one.code for one in dead) == Counter(code for _, code in POISON.values() for _ in range(ROUNDS))
    assert set(tries.values()) == {2}
    assert {one.attempts for one in dead} == {1, 2}
