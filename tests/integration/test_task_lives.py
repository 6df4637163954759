"""Lives of tasks on a real broker: deliveries, ends, deaths and cancels in whatever order (REG-8)."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from bus import Bus, BusError, Call, CallDraft, Envelope, RetryLater, Settings
from bus.broker.connection import Connection
from bus.broker.provisioning import provision
from bus.calls.capability import Capability
from bus.calls.guard import Guard
from bus.calls.service import Service
from bus.calls.tasks import runner
from bus.calls.tasks.record import TaskRecord, TaskState
from bus.calls.tasks.store import Step, TaskStore, now
from bus.calls.tasks.submission import Wish
from bus.calls.tasks.task import Task
from bus.errors import error
from bus.telemetry.spans import Telemetry

ATTEMPTS = 3
STEPS = st.one_of(
    st.tuples(st.sampled_from(["deliver", "deliver to the deaf"]), st.integers(0, 1)),
    st.tuples(st.sampled_from(["die", "stop"]), st.integers(0, 1)),
    st.tuples(st.sampled_from(["finish", "fail", "try again"]), st.integers(0, 3)),
    st.tuples(st.sampled_from(["cancel", "submit again"]), st.just(0)),
)


@dataclass
class Run:
    """One run of the capability, in the hands of the test. A deaf one does not listen to cancellations."""

    is_deaf: bool
    end: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    has_left: bool = False


@dataclass(frozen=True)
class Delivered:
    """What the pipeline hands to the runner."""

    envelope: Envelope
    traceparent: str | None = None


class Replica:
    """One replica of the agent with a connection of its own, without the pipeline: the test delivers."""

    def __init__(self, connection: Connection, world: World) -> None:
        capability = Capability("desk.work", world.work, lenient=False, fields={"mode": "task", "timeout_s": 60.0})
        self.connection = connection
        self.telemetry = Telemetry("desk", namespace=connection.settings.namespace)
        self.service = Service(
            connection,
            self.telemetry,
            agent="desk",
            capabilities={"desk.work": capability},
            checks=(),
            concurrency=4,
            publish=_publish_nothing,
            attempts=lambda _: ATTEMPTS,
            guard=Guard(connection, "desk", instance="any"),
        )
        self.handling: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(cls, world: World) -> Replica:
        replica = cls(await Connection.open(world.settings, name="desk"), world)
        await replica.service.tasks.start()
        return replica

    async def stop(self) -> None:
        """Hands back what it has in hand."""
        for one in self.handling:
            one.cancel()
        if self.handling:
            await asyncio.wait(self.handling, timeout=5)

    async def die(self) -> None:
        """Says nothing more to anybody: the link is gone before anything is cancelled."""
        await self.connection.close()
        await self.close()

    async def close(self) -> None:
        await self.stop()
        await self.service.close()
        await self.telemetry.close()
        await self.connection.close()


class World:
    """A task, two replicas, and everything that has been seen of it."""

    def __init__(self, settings: Settings) -> None:
        # Nobody here would store the records of calls.
        self.settings = settings.model_copy(update={"audit": False})
        self.runs: list[Run] = []
        self.replicas: list[Replica] = []
        self.next_is_deaf = False
        self.ended: TaskRecord | None = None
        self.is_cancel_confirmed = False

    async def work(self, call: Call) -> int:
        """Waits for the test to say how it ends."""
        run = Run(self.next_is_deaf)
        self.runs.append(run)
        try:
            while not run.end.done():
                try:
                    await asyncio.wait({run.end})
                except asyncio.CancelledError:
                    if not run.is_deaf:
                        raise
            return run.end.result()  # type: ignore[no-any-return]
        finally:
            run.has_left = True

    async def begin(self) -> None:
        self.asker = await Connection.open(self.settings, name="tester")
        self.telemetry = Telemetry("tester", namespace=self.settings.namespace)
        self.asking = Service(
            self.asker, self.telemetry, agent="tester", capabilities={}, checks=(), concurrency=1,
            publish=_publish_nothing, attempts=lambda _: 1, guard=Guard(self.asker, "tester", instance="any"),
        )  # fmt: skip
        self.replicas = [await Replica.start(self) for _ in range(2)]
        self.key = uuid.uuid4().hex
        self.task = await self.submit()

    async def submit(self) -> Task:
        draft = CallDraft("desk.work", {}, idempotency_key=self.key)
        record = await self.asking.caller.submission.submit(Wish(draft, "desk", "tester"))
        return Task(self.asker, "tester", record.id)

    async def deliver(self, number: int, *, is_deaf: bool = False) -> None:
        """One delivery, also of what another one has in hand; returns when it runs or has ended."""
        replica, before = self.replicas[number], len(self.runs)
        self.next_is_deaf = is_deaf
        payload = {"tool_call_id": self.task.id, "tool_name": "desk.work", "arguments": {}}
        envelope = Envelope(
            sender="tester", to="desk", type="tool_call_request", message_id=self.task.id, payload=payload
        )
        handling = asyncio.create_task(replica.service.tasks.handle(payload, Delivered(envelope)))
        replica.handling.add(handling)
        handling.add_done_callback(replica.handling.discard)
        async with asyncio.timeout(10):
            while not handling.done() and len(self.runs) == before:
                await asyncio.wait({handling}, timeout=0.002)
        if handling.done():
            assert isinstance(handling.exception(), BusError | None)

    async def end(self, number: int, how: Any) -> None:
        """Ends one of the runs that go on, on time or late."""
        going = [run for run in self.runs if not run.end.done() and not run.has_left]
        if not going:
            return
        run = going[number % len(going)]
        if isinstance(how, Exception):
            run.end.set_exception(how)
        else:
            run.end.set_result(how)
        handling = [one for replica in self.replicas for one in replica.handling]
        if handling:
            # What it was for ends; other deliveries go on.
            await asyncio.wait(handling, timeout=0.05, return_when=asyncio.FIRST_COMPLETED)

    async def take(self, step: str, number: int) -> None:
        match step:
            case "deliver":
                await self.deliver(number)
            case "deliver to the deaf":
                await self.deliver(number, is_deaf=True)
            case "die":
                await self.replicas[number].die()
                self.replicas[number] = await Replica.start(self)
            case "stop":
                await self.replicas[number].stop()
            case "finish":
                await self.end(number, 1)
            case "fail":
                await self.end(number, ValueError("no"))
            case "try again":
                await self.end(number, RetryLater(0))
            case "submit again":
                assert (await self.submit()).id == self.task.id
            case "cancel":
                record = await self.task.cancel()
                assert record.is_terminal
                self.is_cancel_confirmed = record.state is TaskState.CANCELLED
        await self.look()

    async def look(self) -> TaskRecord:
        """The record; one that had ended is what it was."""
        record = await self.task.status()
        assert self.ended in (None, record), "a terminal state changed"
        self.ended = record if record.is_terminal else None
        assert not self.is_cancel_confirmed or record.state is TaskState.CANCELLED
        assert record.attempts <= ATTEMPTS
        return record

    async def finish(self) -> TaskState:
        """However it went: a message that is delivered until it is settled, and runs that end, bring an end."""
        for number in itertools.count():
            assert number < 2 * ATTEMPTS + 2, "it does not end"
            await self.deliver(number % 2)
            while any(not run.end.done() and not run.has_left for run in self.runs):
                await self.end(0, 1)
            if (await self.look()).is_terminal:
                break
        outcome = await self.task.outcome(timeout_s=10)
        assert outcome.ok is ((await self.look()).state is TaskState.SUCCEEDED)
        return (await self.look()).state

    async def close(self) -> None:
        for run in self.runs:
            if not run.end.done():
                run.end.set_result(0)
        for replica in self.replicas:
            await replica.close()
        await self.asking.close()
        await self.telemetry.close()
        await self.asker.close()


async def _publish_nothing(*_: Any, **__: Any) -> Envelope:
    raise AssertionError("nothing is sent here")


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deaf are given up quickly."""
    for name, seconds in (("END_S", 0.04), ("ASK_AGAIN_S", 0.02), ("GIVE_BACK_S", 0.05)):
        monkeypatch.setattr(runner, name, seconds)


@pytest.mark.usefixtures("short_waits")
@pytest.mark.timeout(120)
@given(steps=st.lists(STEPS, min_size=2, max_size=10))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_every_task_has_one_end(bus_settings: Settings, steps: list[tuple[str, int]]) -> None:
    """REG-8: always terminal, never two ends, and no success once a cancel was confirmed."""

    async def live() -> TaskState:
        connection = await Connection.open(bus_settings, name="provisioning")
        await provision(connection)
        await connection.close()
        world = World(bus_settings)
        await world.begin()
        try:
            for step, number in steps:
                await world.take(step, number)
            return await world.finish()
        finally:
            await world.close()

    event(asyncio.run(live()))


async def test_of_last_words_at_once_one_counts(bus: Bus, bus_settings: Settings) -> None:
    """REG-8: by compare-and-set on the broker, from several connections; everybody is told the same end."""
    async with Bus.connect("other", settings=bus_settings) as other:
        stores = [TaskStore(bus.connection), TaskStore(other.connection)]
        for _ in range(30):
            task = await bus.submit("desk.work", {}, agent="desk")
            begun = await stores[0].change(task.id, lambda one: one.begun("a", now()))
            steps: list[Step] = [
                lambda one: one.succeeded({"tool_call_id": one.id, "ok": True, "data": 1, "meta": {}}, None, now()),
                lambda one: one.failed(one.attempts, one.refusal(error("tool.timeout", "slow").info), now()),
                lambda one: one.cancelled("me", now()),
                lambda one: one.given_back(one.attempts, counts=True),
                lambda one: one.cancelled("you", now()),
            ]
            changes = await asyncio.gather(
                *(stores[number % 2].change(task.id, step) for number, step in enumerate(steps))
            )
            ends = [change.record for change in changes if change.is_ours and change.record.is_terminal]
            assert (begun.is_ours, len(ends)) == (True, 1)
            assert await task.status() == ends[0]
            told = [change.record for change in changes if change.record.is_terminal]
            assert told == [ends[0]] * len(told)
            assert len(told) >= 4


@pytest.mark.usefixtures("short_waits", "bus")
async def test_two_replicas_that_get_one_task_at_once_run_it_once(bus_settings: Settings) -> None:
    """REG-8, DEL-1: one begins; the other gives its copy back, and settles it when it comes again."""
    world = World(bus_settings)
    await world.begin()
    try:
        for number in range(1, 13):
            world.key = uuid.uuid4().hex
            world.task = await world.submit()
            await asyncio.gather(world.deliver(0), world.deliver(1))
            await asyncio.gather(world.deliver(0), world.deliver(1))
            assert len(world.runs) == number
            await world.end(0, number)
            assert (await world.task.result(timeout_s=10)).data == number
            await world.deliver(0)
            assert len(world.runs) == number
    finally:
        await world.close()
