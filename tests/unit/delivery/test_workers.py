"""Workers run deliveries in order, within their limit, each apart from the others (DEL-1, DEL-6)."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable

import pytest

from bus.broker.pull import Delivery
from bus.delivery.workers import Workers

MARK: contextvars.ContextVar[int] = contextvars.ContextVar("mark", default=0)


def _delivery(number: int) -> Delivery:
    return Delivery("bus.v1.work.a.normal.b.c", b"", {}, f"reply.{number}", number, 1, 0, 0)


class _Run:
    """What the workers of a test run, and what happened."""

    def __init__(self, body: Callable[[int], Awaitable[None]], limit: int = 4) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.lost: list[int] = []
        self.most = 0
        self._body = body
        self.workers = Workers(self._run, lost=lambda one: self.lost.append(one.stream_seq), limit=limit, name="test")

    async def _run(self, delivery: Delivery) -> None:
        self.begun.append(delivery.stream_seq)
        self.most = max(self.most, len(self.begun) - len(self.ended))
        try:
            await self._body(delivery.stream_seq)
        finally:
            self.ended.append(delivery.stream_seq)

    def put(self, count: int) -> None:
        for number in range(count):
            self.workers.put(_delivery(number))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0)


async def test_what_does_not_wait_runs_in_order_in_one_task() -> None:
    tasks: set[object] = set()

    async def body(_: int) -> None:
        tasks.add(asyncio.current_task())

    run = _Run(body)
    run.put(50)
    await run.until(lambda: len(run.ended) == 50)
    assert run.begun == run.ended == list(range(50))
    assert len(tasks) == 1
    run.workers.close()


async def test_what_waits_runs_beside_others_within_the_limit() -> None:
    gate = asyncio.Event()

    async def body(_: int) -> None:
        await gate.wait()

    run = _Run(body)
    run.put(10)
    await run.until(lambda: len(run.begun) == 4)
    for _ in range(10):
        await asyncio.sleep(0)
    assert run.begun == [0, 1, 2, 3]
    gate.set()
    await run.until(lambda: len(run.ended) == 10)
    assert run.begun == list(range(10))
    assert run.most == 4
    run.workers.close()


async def test_a_context_variable_ends_with_its_delivery() -> None:
    seen: list[tuple[int, int]] = []

    async def body(number: int) -> None:
        before = MARK.get()
        MARK.set(number + 1)
        await asyncio.sleep(0)
        seen.append((before, MARK.get()))

    run = _Run(body, limit=2)
    run.put(20)
    await run.until(lambda: len(run.ended) == 20)
    assert sorted(seen) == [(0, number + 1) for number in range(20)]
    run.workers.close()


async def test_a_timeout_in_one_touches_no_other() -> None:
    async def body(number: int) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001 * (number % 3)):
                await asyncio.sleep(5)

    run = _Run(body)
    run.put(12)
    await run.until(lambda: len(run.ended) == 12)
    assert not run.lost
    run.workers.close()


async def test_cancel_reaches_what_runs_and_the_rest_is_taken_back() -> None:
    cancelled: list[int] = []

    async def body(number: int) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    run = _Run(body, limit=3)
    run.put(8)
    await run.until(lambda: len(run.begun) == 3)
    assert [one.stream_seq for one in run.workers.take_back()] == [3, 4, 5, 6, 7]
    assert run.workers.cancel() == 3
    await run.until(lambda: len(run.ended) == 3)
    assert sorted(cancelled) == [0, 1, 2]
    run.workers.put(_delivery(9))
    await asyncio.sleep(0.01)
    assert 9 not in run.begun


@pytest.mark.parametrize("kind", ["cancels its task", "raises"])
async def test_a_worker_that_ends_is_replaced(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async def body(number: int) -> None:
        if number == 1:
            if kind == "raises":
                raise RuntimeError("a fault of ours")
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(1)

    run = _Run(body, limit=1)
    run.put(5)
    await run.until(lambda: len(run.ended) == 5)
    assert run.begun == [0, 1, 2, 3, 4]
    assert run.lost == ([1] if kind == "raises" else [])
    assert ("a worker of test ended" in caplog.text) == (kind == "raises")
    run.workers.close()
