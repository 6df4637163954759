"""What wraps handlers and publishes: middleware, limits, policies of their own (DEL-3)."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from bus import Agent, Bus, BusError, Envelope, Message, PermanentFailure, RetryLater, RetryPolicy, Settings
from bus.delivery.handler import CallNext
from bus.delivery.middleware import PublishNext
from tests.integration.test_delivery import emptied, settled_dead_letters


async def test_middleware_wraps_handlers_and_publishes_in_order(settings: Settings) -> None:
    seen: list[str] = []

    async def outer(message: Message, call_next: CallNext) -> None:
        seen.append(f"outer {message.type} {message.content}")
        await call_next(message)
        seen.append("outer ends")

    async def inner(message: Message, call_next: CallNext) -> None:
        seen.append("inner")
        await call_next(message)

    async def mark(envelope: Envelope, publish: PublishNext) -> None:
        await publish(envelope.replace(extensions={**envelope.extensions, "x_mark": envelope.sender}))

    worker = Agent("worker", middleware=[outer, inner], publish_middleware=[mark])
    sink, got = Agent("sink"), asyncio.Queue[Message]()

    @worker.on("job")
    async def job(payload: Any, message: Message) -> None:
        seen.append("handler")
        sent = await message.send("sink", "part", {})
        seen.append(f"sent {sent.extensions['x_mark']}")

    @sink.on("part")
    async def part(payload: Any, message: Message) -> None:
        await got.put(message)

    async with (
        Bus.connect("tester", settings=settings, middleware=[mark]) as bus,
        worker.running(settings),
        sink.running(settings),
    ):
        sent = await bus.send("worker", "job", 1)
        assert sent.extensions["x_mark"] == "tester"
        assert (await got.get()).envelope.extensions["x_mark"] == "worker"
        await emptied(bus)
    assert seen == ["outer job 1", "inner", "handler", "sent worker", "outer ends"]


async def test_what_middleware_raises_is_the_handlers_failure(bus: Bus, settings: Settings) -> None:
    async def refuse(message: Message, call_next: CallNext) -> None:
        raise PermissionError("not on Sundays")

    worker = Agent("worker", middleware=[refuse])

    @worker.on("job")
    async def job(payload: Any) -> None:
        raise AssertionError("never reached")

    async with worker.running(settings):
        await bus.send("worker", "job", {})
        (dead,) = await settled_dead_letters(bus, 1)
    assert dead.reason == "PermissionError: not on Sundays"


async def test_concurrency_of_one_handler(bus: Bus, settings: Settings) -> None:
    worker, running, most, ended = Agent("worker", concurrency=10), 0, 0, 0

    @worker.on("job", concurrency=2)
    async def job(payload: Any) -> None:
        nonlocal running, most, ended
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        ended += 1

    async with worker.running(settings):
        await asyncio.gather(*(bus.send("worker", "job", n) for n in range(12)))
        while ended < 12:
            await asyncio.sleep(0.02)
    assert most == 2


async def test_rate_of_one_handler(bus: Bus, settings: Settings) -> None:
    worker, begun = Agent("worker"), []

    @worker.on("job", rate_per_s=20)
    async def job(payload: Any) -> None:
        begun.append(time.monotonic())

    async with worker.running(settings):
        await asyncio.gather(*(bus.send("worker", "job", n) for n in range(8)))
        while len(begun) < 8:
            await asyncio.sleep(0.02)
    assert begun[-1] - begun[0] >= 7 / 20 - 0.02


async def test_timeout_and_policies_of_one_handler(bus: Bus, settings: Settings) -> None:
    """A handler that takes too long is retried by its own policy; another has the agent's."""
    worker = Agent("worker", retry=RetryPolicy(max_attempts=3, base_s=0.01))
    attempts: dict[str, list[int]] = {"slow": [], "busy": []}

    @worker.on("slow", timeout_s=0.05, retry=RetryPolicy(max_attempts=2, base_s=0.01))
    async def slow(payload: Any, message: Message) -> None:
        attempts["slow"].append(message.attempt)
        await asyncio.sleep(10)

    @worker.on("busy")
    async def busy(payload: Any, message: Message) -> None:
        attempts["busy"].append(message.attempt)
        raise RetryLater(0.0)

    async with worker.running(settings):
        await bus.send("worker", "slow", {})
        await bus.send("worker", "busy", {})
        dead = await settled_dead_letters(bus, 2)
    assert attempts == {"slow": [1, 2], "busy": [1, 2, 3]}
    assert {(one.code, one.attempts) for one in dead} == {("tool.timeout", 2), ("tool.execution_failed", 3)}


async def test_a_message_older_than_the_policy_allows_is_not_begun(bus: Bus, settings: Settings) -> None:
    worker = Agent("worker", retry=RetryPolicy(max_age_s=0.2))

    @worker.on("job")
    async def job(payload: Any) -> None:
        raise AssertionError("too old to begin")

    await bus.send("worker", "job", {})
    await asyncio.sleep(0.3)
    async with worker.running(settings):
        (dead,) = await settled_dead_letters(bus, 1)
    assert dead.code == "protocol.expired"


class Odd(BaseException):
    """Neither an Exception nor a stop."""


class Mute(Exception):
    """Its own text raises."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


ODD: dict[str, BaseException] = {
    "own BaseException": Odd("odd"),
    "SystemExit": SystemExit(3),
    "GeneratorExit": GeneratorExit(),
    "group": BaseExceptionGroup("several", [Odd("one")]),
    "cancels itself": asyncio.CancelledError(),
    "text raises": Mute(),
    "lone surrogate": ValueError("file \udcff"),
    "huge text": ValueError("x" * 2_000_000),
    "details that are not JSON": PermanentFailure("no", thing=object(), nan=float("nan")),
    "broken retry_after_ms": BusError("upstream.rate_limit", "no", retryable=False, retry_after_ms="soon"),
}


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("name", [*ODD, "StopIteration"])
async def test_whatever_a_handler_raises_is_one_dead_letter(
    name: str, in_thread: bool, bus: Bus, settings: Settings
) -> None:
    """DEL-4: it is buried once, its sender is told, its only slot is free again, and the replica lives."""
    worker, handled = Agent("worker", concurrency=1), asyncio.Event()
    loop, runs = asyncio.get_running_loop(), list[int]()
    problem = ODD.get(name) or StopIteration()

    def fail(payload: Any, message: Message) -> None:
        runs.append(message.attempt)
        raise problem

    async def fail_async(payload: Any, message: Message) -> None:
        fail(payload, message)

    worker.on("odd")(fail if in_thread else fail_async)

    @worker.on("good")
    async def good(payload: Any) -> None:
        loop.call_soon(handled.set)

    async with worker.running(settings.model_copy(update={"ack_wait_s": 1.0})):
        sent = await bus.send("worker", "odd", {})
        outcome = await bus.outcome(sent, timeout_s=10)
        await bus.send("worker", "good", {})
        async with asyncio.timeout(10):
            await handled.wait()
        await asyncio.sleep(1.2)
        await emptied(bus)
        dead = [one async for one in bus.dead_letters.list()]
    assert outcome.dead is not None
    assert outcome.reply is not None
    assert outcome.reply.type == "error"
    assert (len(dead), runs) == (1, [1])
