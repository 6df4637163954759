"""The story of a workflow as the streams tell it, on a real server (OBS-4, OBS-6)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import nats
import orjson

from bus import Agent, Bus, Message, RetryLater, RetryPolicy, Settings, Story
from bus.broker.reader import StreamReader
from bus.broker.streams import StreamNames
from bus.testing import settled
from bus.workflow.completions import decode_all, decode_identities
from bus.workflow.recorded import read_records
from bus.workflow.story import State, Status, Step


async def told(bus: Bus, workflow_id: str, until: Callable[[Story], bool]) -> Story:
    """The story once it is as `until` says."""
    while not until(story := await bus.trace(workflow_id)):
        await asyncio.sleep(0.02)
    return story


def by_type(story: Story) -> dict[str, Step]:
    return {step.envelope.type: step for step in story.steps}


async def test_the_states_of_a_running_workflow(bus: Bus, settings: Settings) -> None:
    """Handled, in hand, dead, refused, waiting for nobody, delayed, broadcast, an answer to a client."""
    worker, helper, hold = Agent("worker"), Agent("second"), asyncio.Event()

    @worker.on("begin", phase="plan")
    async def begin(payload: dict[str, int], message: Message) -> None:
        for type in ("slow", "fails", "unknown", "good"):
            await message.send("second", type, {}, phase="execute")
        await message.send("misspelt", "lost", {})
        await message.send("second", "later", {}, delay_s=60)
        await message.send("*", "progress", {})
        await message.reply("answer", {})

    @helper.on("slow")
    async def slow(payload: dict[str, int]) -> None:
        await hold.wait()

    @helper.on("fails")
    async def fails(payload: dict[str, int]) -> None:
        raise ValueError("boom")

    @helper.on("good")
    async def good(payload: dict[str, int]) -> None: ...

    @worker.on("error")
    async def refused(payload: dict[str, object]) -> None: ...

    async with worker.running(settings), helper.running(settings):
        workflow = bus.workflow("states")
        await workflow.send("worker", "begin", {})
        story = await told(
            bus,
            workflow.id,
            lambda one: len(one.steps) == 11 and len(one.waits) == 3 and "fails" in by_type(one),
        )
        steps = by_type(story)
        assert {type: step.state for type, step in steps.items()} == {
            "begin": State.HANDLED, "slow": State.IN_HAND, "fails": State.DEAD, "unknown": State.REFUSED,
            "good": State.HANDLED, "lost": State.WAITING, "later": State.DELAYED, "progress": State.BROADCAST,
            "answer": State.FOR_CLIENT, "error": State.HANDLED,
        }  # fmt: skip
        assert story.status is Status.OPEN
        assert {(wait.agent, wait.type, wait.replicas) for wait in story.waits} == {
            ("second", "slow", 1), ("misspelt", "lost", None), ("second", "later", 1),
        }  # fmt: skip
        assert [step.depth for step in story.steps].count(0) == 1
        assert (steps["begin"].exec_ms, steps["begin"].timing.waited_ms) > (0, 0)
        hold.set()
        after = await told(bus, workflow.id, lambda one: by_type(one)["slow"].state is State.HANDLED)
        assert by_type(after)["slow"].exec_ms > 0


async def test_a_retry_shows_its_errors_while_it_waits_and_after(bus: Bus, settings: Settings) -> None:
    """Each failed attempt is in the story with its error: between them, and once it was handled at last."""
    worker, ready = Agent("worker"), asyncio.Event()

    @worker.on("job", retry=RetryPolicy(max_attempts=50, base_s=0))
    async def job(payload: dict[str, int], message: Message) -> None:
        if not ready.is_set():
            raise RetryLater(0.3, f"the model is away, attempt {message.attempt}")

    async with worker.running(settings):
        workflow = bus.workflow("retry")
        await workflow.send("worker", "job", {})
        story = await told(bus, workflow.id, lambda one: bool(one.steps) and one.steps[0].tries >= 2)
        (step,), (wait,) = story.steps, story.waits
        assert step.state is State.RETRYING
        assert wait.error is not None
        assert wait.error.startswith("tool.execution_failed: the model is away, attempt ")
        assert wait.again_at is not None
        ready.set()
        after = await told(bus, workflow.id, lambda one: one.steps[0].state is State.HANDLED)
    failures = [one.error.message for one in after.steps[0].attempts if one.error is not None]
    assert failures[:2] == ["the model is away, attempt 1", "the model is away, attempt 2"]
    assert after.total.retries == len(failures)
    assert after.status is Status.DONE


async def test_a_failed_attempt_is_no_completion(bus: Bus, settings: Settings) -> None:
    """DEL-2: another replica, that learns from the same stream, handles what failed at the first."""
    handled = asyncio.Event()

    def replica() -> Agent:
        agent = Agent("worker")

        @agent.on("job", retry=RetryPolicy(base_s=0))
        async def job(payload: dict[str, int], message: Message) -> None:
            if message.attempt == 1:
                raise RetryLater(0.2)
            handled.set()

        return agent

    async with replica().running(settings):
        await bus.send("worker", "job", {}, workflow_id="wf")
        await told(bus, "wf", lambda one: bool(one.steps) and one.steps[0].tries == 1)
    async with replica().running(settings):
        await handled.wait()
        await settled(bus)
    done = StreamNames.of(settings.namespace).done
    async with StreamReader(bus.connection, done, start_seq=1) as reader:
        records = [delivery.data async for delivery in reader.until_now()]
    assert sum(len(decode_identities(data)) for data in records) == 1
    assert sum(len(decode_all(data)[1]) for data in records) >= 1


async def test_a_duplicate_is_one_step_that_was_stored_twice(bus: Bus, settings: Settings) -> None:
    """A foreign publisher without Nats-Msg-Id stores two copies: one step, handled once."""
    worker = Agent("worker")

    @worker.on("job")
    async def job(payload: dict[str, int]) -> None: ...

    message = {
        "version": "1.2", "message_id": "m", "trace_id": "t", "from": "stranger", "to": "worker", "type": "job",
        "workflow_id": "wf/ä",
    }  # fmt: skip
    stranger = await nats.connect(settings.servers)
    async with worker.running(settings):
        for data in (orjson.dumps(message), b'{"workflow_id":"wf\\/\\u00e4",' + orjson.dumps(message)[1:]):
            await stranger.jetstream().publish(f"{settings.namespace}.v1.work.worker.normal.stranger.job", data)
        await settled(bus)
        story = await told(bus, "wf/ä", lambda one: bool(one.steps) and one.steps[0].copies == 2)
    await stranger.close()
    (step,) = story.steps
    assert (step.state, len(step.attempts)) == (State.HANDLED, 1)


async def test_an_expired_message_and_a_stopped_agent(bus: Bus, settings: Settings) -> None:
    """What came too late is expired; what waits for an agent without a replica is stuck, and says so."""
    worker = Agent("worker")

    @worker.on("job")
    async def job(payload: dict[str, int]) -> None: ...

    async with worker.running(settings):
        past = datetime.now(UTC).isoformat()
        await bus.send("worker", "job", {}, workflow_id="late", extensions={"expires_at": past})
        story = await told(bus, "late", lambda one: bool(one.steps) and one.steps[0].state is State.EXPIRED)
        assert story.steps[0].death is not None
    await bus.send("worker", "job", {}, workflow_id="lonely")
    lonely = await told(bus, "lonely", lambda one: bool(one.waits) and one.waits[0].replicas == 0)
    assert lonely.status is Status.STUCK


async def test_what_completions_have_forgotten_does_not_wait(bus: Bus, settings: Settings) -> None:
    """The history outlives the completions: then the work stream says that nothing is open."""
    worker = Agent("worker")

    @worker.on("job")
    async def job(payload: dict[str, int]) -> None: ...

    async with worker.running(settings):
        await bus.send("worker", "job", {}, workflow_id="old")
        await told(bus, "old", lambda one: bool(one.steps) and one.steps[0].state is State.HANDLED)
    await bus.connection.jetstream().purge_stream(StreamNames.of(settings.namespace).done)
    story = await bus.trace("old")
    assert [step.state for step in story.steps] == [State.GONE]
    assert story.waits == ()


async def test_an_unknown_workflow_has_no_steps(bus: Bus) -> None:
    await bus.send("nobody", "job", {}, workflow_id="known")
    assert (await bus.trace("unknown")).steps == ()
    assert await bus.workflows() == ["known"]


async def test_since_leaves_out_what_came_before(bus: Bus) -> None:
    """`--since` reads from that moment on, and not from the time in the id (OBS-6)."""
    workflow = bus.workflow("since")
    await workflow.send("nobody", "before", {})
    between = (await told(bus, workflow.id, lambda story: len(story.steps) == 1)).read_at
    await workflow.send("nobody", "after", {})
    await told(bus, workflow.id, lambda story: len(story.steps) == 2)
    assert list(by_type(await bus.trace(workflow.id, since=between))) == ["after"]


async def test_the_history_is_left_when_nothing_is_open_and_all_was_quiet(bus: Bus, settings: Settings) -> None:
    """What came after the silence is not read, and a note says so; while something is open all is read (OBS-6)."""
    worker, hold = Agent("worker"), asyncio.Event()
    hold.set()

    @worker.on("job")
    async def job(payload: dict[str, int]) -> None:
        await hold.wait()

    async def types(quiet: timedelta) -> tuple[list[str], list[str]]:
        records = await read_records(bus.connection, workflow.id, quiet=quiet)
        return [copy.envelope.type for copy in records.copies], records.notes

    async with worker.running(settings):
        workflow, other = bus.workflow("quiet"), bus.workflow("other")
        await workflow.send("worker", "job", {})
        await settled(bus, 20)
        await other.send("worker", "job", {})
        await workflow.send("nobody", "afterwards", {})
        found, notes = await types(timedelta(0))
        assert found == ["job"]
        assert len(notes) == 1
        assert notes[0].startswith("nothing was open, and what was stored after ")
        assert await types(timedelta(hours=1)) == (["job", "afterwards"], [])
        hold.clear()
        workflow = bus.workflow("open")
        await workflow.send("worker", "job", {})
        await other.send("worker", "job", {})
        await workflow.send("nobody", "afterwards", {})
        assert await types(timedelta(0)) == (["job", "afterwards"], [])
        hold.set()
