"""Budgets, loops, context and labels on a real server (WF-4, WF-6, SEC-4)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from bus import Agent, Bus, BusError, Call, Draft, Message, Rejected, Settings
from bus.testing import settled
from bus.trust.budget import Budget
from bus.workflow.context import Entry


async def codes(bus: Bus) -> Counter[str]:
    return Counter([dead.code async for dead in bus.dead_letters.list()])


def echoing(name: str, other: str, seen: list[str]) -> Agent:
    """An agent that answers each ball with another one."""
    agent = Agent(name)

    @agent.on("ball")
    async def ball(payload: Any, message: Message) -> None:
        seen.append(name)
        await message.send(other, "ball", {})

    return agent


async def test_two_agents_that_answer_each_other_stop_by_themselves(bus: Bus, settings: Settings) -> None:
    """WF-6: without any budget the hops end it; the sender hears why, and the last message is a dead letter."""
    seen: list[str] = []
    settings = settings.model_copy(update={"max_hops": 20})
    ping, pong = echoing("ping", "pong", seen), echoing("pong", "ping", seen)
    async with ping.running(settings), pong.running(settings):
        await bus.send("ping", "ball", {})
        await settled(bus)
    assert Counter(seen) == {"ping": 11, "pong": 10}
    assert await codes(bus) == {"protocol.loop": 1}


async def test_an_agent_limits_how_often_a_chain_passes_it(bus: Bus, settings: Settings) -> None:
    """WF-6: `max_visits` is its own rule."""
    seen: list[str] = []
    ping, pong = Agent("ping", max_visits=3), echoing("pong", "ping", seen)

    @ping.on("ball")
    async def ball(payload: Any, message: Message) -> None:
        seen.append("ping")
        await message.send("pong", "ball", {})

    async with ping.running(settings), pong.running(settings):
        await bus.send("ping", "ball", {})
        await settled(bus)
    assert Counter(seen) == {"ping": 3, "pong": 3}
    assert await codes(bus) == {"protocol.loop": 1}


async def test_replicas_share_the_messages_of_a_workflow_exactly(bus: Bus, settings: Settings) -> None:
    """WF-6: a chain that doubles at every step, on three replicas: the budget holds to the last message."""
    sent = 0
    worker = Agent("worker")

    @worker.on("job")
    async def job(payload: Any, message: Message) -> None:
        nonlocal sent
        for n in range(2):
            await message.send("worker", "job", {}, key=str(n))
            sent += 1

    async with worker.running(settings), worker.running(settings), worker.running(settings):
        workflow = bus.workflow("explosion", budget=Budget(messages=40))
        await workflow.send("worker", "job", {})
        await settled(bus)
    assert sent == 39
    assert (await codes(bus)).keys() == {"protocol.budget_exhausted"}
    with pytest.raises(Rejected) as refused:
        await workflow.send_many([Draft("worker", "job", {})])
    assert refused.value.info.details == {
        "unit": "messages",
        "limit": 40,
        "spent": 40,
        "account": f"{workflow.id}.budget.workflow",
    }


async def test_calls_and_tokens_of_a_chain_are_counted_wherever_they_happen(bus: Bus, settings: Settings) -> None:
    """WF-6: calls two levels deep and tokens told on both levels count in one budget, a share in both."""
    helper, worker = Agent("helper"), Agent("worker")
    ended: list[str] = []

    @helper.capability("mind.think")
    async def think(call: Call) -> str:
        """Does think."""
        await call.spend(tokens=40)
        return "thought"

    @helper.capability("mind.deep")
    async def deep(call: Call) -> str:
        """Does deep."""
        return str((await call.call("mind.think", {})).data)

    @worker.on("job")
    async def job(payload: Any, message: Message) -> None:
        try:
            while True:
                await message.call(payload["capability"], {}, key=str(len(ended)))
                ended.append("")
        except BusError as problem:
            ended.append(f"{problem.info.code} {problem.info.details.get('unit')}")

    async with helper.running(settings), worker.running(settings):
        await bus.workflow("calls", budget=Budget(calls=5)).send("worker", "job", {"capability": "mind.deep"})
        await settled(bus)
        assert ended == ["", "", "protocol.budget_exhausted calls"]
        ended.clear()
        await bus.workflow("tokens", budget=Budget(tokens=100)).send("worker", "job", {"capability": "mind.think"})
        await settled(bus)
        assert ended == ["", "", "protocol.budget_exhausted tokens"]
        ended.clear()
        share = {"budget": {"calls": 2}}
        draft = Draft("worker", "job", {"capability": "mind.think"}, extensions=share)
        workflow = bus.workflow("shares", budget=Budget(calls=3, messages=10))
        await workflow.send_many([draft])
        await settled(bus)
        await workflow.send_many([draft])
        await settled(bus)
    # The second share may use two, but one is left of what it is a share of.
    assert ended == ["", "", "protocol.budget_exhausted calls", "", "protocol.budget_exhausted calls"]


async def test_a_memory_is_bounded_summarised_and_written_once(bus: Bus, settings: Settings) -> None:
    """WF-4: a handler that runs again remembers once; over the limit the hook's summary takes the place of the old."""
    settings = settings.model_copy(update={"memory_limit": 1500})
    agent = Agent("agent")
    read: list[Entry] = []
    refused: list[str] = []

    async def summarise(entries: Any) -> str:
        return f"{len(entries)} things before"

    @agent.on("job")
    async def job(n: Any, message: Message) -> None:
        await message.context.remember(f"thing {n} " + "x" * 200, summarise=summarise)
        if n == 1 and message.attempt == 1:
            raise BusError("upstream.rate_limit", "again", retry_after_ms=1)

    @agent.on("read")
    async def reading(payload: Any, message: Message) -> None:
        read.extend(await message.context.memory())
        try:
            await message.context.remember("y" * 2000, summarise=summarise)
        except Rejected as problem:
            refused.append(problem.info.code)

    async with agent.running(settings):
        workflow = bus.workflow("memory")
        for n in range(8):
            await workflow.send("agent", "job", n)
            await settled(bus)
        await workflow.send("agent", "read", {})
        await settled(bus)
    assert read[0].text.endswith("things before")
    texts = [entry.text.split(" x")[0] for entry in read[1:]]
    assert texts == [f"thing {n}" for n in range(8 - len(texts), 8)]
    assert len({entry.key for entry in read}) == len(read)
    assert refused == ["protocol.too_large"]


async def test_labels_follow_what_is_read_and_stop_before_what_is_sensitive(bus: Bus, settings: Settings) -> None:
    """SEC-4: a fetched page labels the result, the memory, whoever reads it, and what they send and call."""
    web, writer, sender = Agent("web"), Agent("writer"), Agent("sender")
    told: dict[str, Any] = {}

    @web.capability("web.fetch")
    async def fetch(url: str, call: Call) -> str:
        """Does fetch."""
        call.label("external")
        return "buy now"

    @sender.capability("mail.send", sensitive=True)
    async def mail(text: str) -> str:
        """Does mail."""
        told["mailed"] = text
        return "sent"

    @writer.on("fetch_page")
    async def fetching(payload: Any, message: Message) -> None:
        told["before"] = message.labels
        page = await message.call("web.fetch", {"url": "http://x"})
        await message.context.remember(str(page.data))
        await message.context.attach(await message.artifacts.put(b"page", name="page"))
        told["after"] = message.labels

    @writer.on("mail_it")
    async def mailing(payload: Any, message: Message) -> None:
        told["instructions"] = await message.context.instructions()
        await message.call("mail.send", {"text": "hello"}, key="clean")
        told["artifacts"] = {name: one.labels for name, one in (await message.context.artifacts()).items()}
        sent = await message.send("sink", "note", {})
        told["labels"] = sent.extensions["labels"]
        try:
            await message.call("mail.send", {"text": "from outside"}, key="dirty")
        except BusError as problem:
            told["refused"] = problem.info.code

    async with web.running(settings), writer.running(settings), sender.running(settings):
        workflow = bus.workflow("labels")
        await workflow.send("writer", "fetch_page", {})
        await settled(bus)
        await workflow.send("writer", "mail_it", {})
        await settled(bus)
    assert (told["before"], told["after"]) == ([], ["external"])
    assert told["artifacts"] == {"page": ("external",)}
    assert (told["labels"], told["mailed"], told["refused"]) == (["external"], "hello", "auth.untrusted_input")


async def test_two_clients_never_spend_a_unit_twice(bus: Bus, settings: Settings) -> None:
    """WF-6: concurrent writers of one account, over two connections."""
    async with Bus.connect("other", settings=settings) as other:
        one = bus.workflow("w", budget=Budget(messages=50))
        two = other.workflow("w", workflow_id=one.id, budget=Budget(messages=50))
        results = await asyncio.gather(
            *(workflow.send("sink", "note", {}) for workflow in (one, two) for _ in range(40)), return_exceptions=True
        )
    stored = [result for result in results if not isinstance(result, BaseException)]
    assert len(stored) == 50
    assert {result.info.code for result in results if isinstance(result, BusError)} == {"protocol.budget_exhausted"}
