"""Has a brief made on the bus: sends the order, follows the workflow, fetches the result."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from agents.library import ABANDONED, ORDER, PHASES
from agents.planner import planner
from agents.reviewer import reviewer
from agents.sources import Source
from agents.writer import writer
from bus import BrokerError, Budget, Bus, BusError, Envelope, Settings, Sighting, Story, Workflow
from bus.trust.labels import EXTERNAL
from bus.workflow.state import WorkflowState
from schemas.brief import BriefFailed, BriefReady, Plan, PlanRequest, SourceRef

CLIENT = "brief"
# Agents of other machines may have other clocks; what is older than the workflow carries another id.
CLOCK_MARGIN = timedelta(minutes=2)
BROKER_AWAY_S = 30.0
PAUSE_S = 0.5
PROBE_S = 5.0
ABANDON_S = 2.0
STORY_WAIT_S = 3.0
STORY_POLL_S = 0.2

# Workflows that this command did not begin and must not end.
NOT_OURS = frozenset({"unknown_workflow", "cannot_go_on"})

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be made, and how. With `resume`, a workflow goes on that has its goal and its sources already."""

    goal: str
    sources: Sequence[Source]
    sections: int
    rounds: int
    remote: bool
    timeout_s: float
    budget: Budget | None = None
    resume: str | None = None


@dataclass(frozen=True, slots=True)
class Brief:
    """A finished brief: its bytes, what the reviewer says of it, its sources, and the workflow's messages."""

    workflow_id: str
    content: bytes
    ready: BriefReady
    sources: Sequence[str]
    story: Story


class BriefError(Exception):
    """There is no brief; the message is one line for a person, `code` for a program."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


async def make_brief(order: Order, settings: Settings, see: Callable[[Envelope], None]) -> Brief:
    """Makes the brief and returns it; `see` is called with every message of the workflow.

    Unless `order.remote`, planner, writer and reviewer run in this process, beside any replicas elsewhere.
    Raises BriefError, and BusError when the broker fails. Cancelled or failed, it tells the agents that nobody
    waits any more, stops those that run here, and leaves.
    """
    async with Bus.connect(CLIENT, settings=settings) as bus:
        async with contextlib.AsyncExitStack() as stack:
            if not order.remote:
                for agent in (planner, writer, reviewer):
                    await stack.enter_async_context(agent.running(settings))
            workflow = bus.workflow("brief", workflow_id=order.resume, budget=order.budget, phases=PHASES)
            try:
                if order.resume is None:
                    await _ask(bus, workflow, order)
                    since = workflow.started_at - CLOCK_MARGIN
                else:
                    since = await _patiently(partial(_go_on, bus, workflow))
                ready = await _patiently(partial(_follow, bus, workflow, order, since, see))
                content = await _patiently(partial(bus.artifacts.get, ready.artifact.sha256))
                plan = Plan.model_validate(await _patiently(partial(workflow.state.read, "plan")))
                workflow.finish()
                # One that goes on was begun by another process, whose end is not ours to trace.
                await _patiently(workflow.end)
            except asyncio.CancelledError:
                await _cancel(workflow)
                raise
            except BaseException as problem:
                if not (isinstance(problem, BriefError) and problem.code in NOT_OURS):
                    await _give_up(bus, workflow, problem)
                raise
        story = await _patiently(partial(_settled_story, bus, workflow.id))
        return Brief(workflow.id, content, ready, [source.file for source in plan.sources], story)


async def _ask(bus: Bus, workflow: Workflow, order: Order) -> None:
    references = [await _patiently(partial(_store, bus, source)) for source in order.sources]
    request = PlanRequest(goal=order.goal, sections=order.sections, rounds=order.rounds, sources=references)
    # What is in the documents was not written by us, and whatever is made of them says so.
    labels = {"labels": [EXTERNAL]}
    await workflow.send("planner", "plan_request", request, phase="plan", extensions=labels)


async def _go_on(bus: Bus, workflow: Workflow) -> datetime:
    """Since when a workflow that goes on is to be read. Raises BriefError for one that cannot."""
    record = await workflow.record()
    if record is None or record.name != "brief":
        known = "is no brief" if record else "is not known"
        raise BriefError(
            "unknown_workflow", f"the workflow {workflow.id} {known}; `bus workflow ls` shows what there is"
        )
    if record.status in ("cancelled", "error", "paused"):
        what = (
            "paused; bus workflow resume" if record.status == "paused" else f"over ({record.status}); begin a new one"
        )
        raise BriefError("cannot_go_on", f"the workflow {workflow.id} is {what}")
    if not (await bus.trace(workflow.id)).steps:
        raise BriefError(
            "cannot_go_on", f"the workflow {workflow.id} ended before it had asked the planner; begin a new one"
        )
    return record.started_at - CLOCK_MARGIN


async def _cancel(workflow: Workflow) -> None:
    """Ends it for everybody: what waits is not begun, what runs is stopped."""
    with contextlib.suppress(BusError, TimeoutError):
        async with asyncio.timeout(ABANDON_S):
            await workflow.cancel(reason="nobody waits for the brief any more")
    workflow.finish("cancelled")


async def _give_up(bus: Bus, workflow: Workflow, problem: BaseException) -> None:
    """Ends it as failed, and tells the agents that nobody waits, so that what is left of it keeps nobody busy."""
    code = type(problem).__qualname__
    if isinstance(problem, BriefError):
        code = problem.code
    elif isinstance(problem, BusError):
        code = problem.info.code
    workflow.finish("error", error=code)
    with contextlib.suppress(BusError, TimeoutError):
        async with asyncio.timeout(ABANDON_S):
            await WorkflowState(bus.connection, workflow.id).update(ORDER, lambda _: ABANDONED)
            await workflow.end("error", error=code)


async def _patiently(step: Callable[[], Awaitable[Result]]) -> Result:
    """Takes a step that may be taken again, while it fails for no longer than a broker may need to come back."""
    deadline = float("inf")
    while True:
        began = time.monotonic()
        try:
            return await step()
        except BrokerError as problem:
            now = time.monotonic()
            # A step that went well for a long time before it failed begins a new count.
            if now - began > BROKER_AWAY_S or deadline == float("inf"):
                deadline = now + BROKER_AWAY_S
            if not problem.info.retryable or now > deadline:
                raise
        await asyncio.sleep(PAUSE_S)


async def _store(bus: Bus, source: Source) -> SourceRef:
    stored = await bus.artifacts.put(source.data, name=source.name)
    return SourceRef(file=source.name, sha256=stored.sha256, size_bytes=stored.size_bytes)


async def _follow(
    bus: Bus, workflow: Workflow, order: Order, since: datetime, see: Callable[[Envelope], None]
) -> BriefReady:
    """Watches from the beginning until the brief is ready; waits `timeout_s` for each next message."""
    who = "planner"
    passing = bus.watch(workflow_id=workflow.id, since=since)
    async with contextlib.aclosing(passing):
        while True:
            sighting = await _next(bus, workflow, passing, order.timeout_s)
            if sighting is None:
                raise BriefError("timeout", _silence(who, order))
            envelope = sighting.envelope
            if envelope is None:
                continue
            if sighting.kind == "dead":
                raise BriefError(*_dead(sighting, envelope, workflow.id))
            see(envelope)
            if envelope.type == "brief_ready" and envelope.to == "*":
                return BriefReady.model_validate(envelope.payload)
            if envelope.type == "brief_failed" and envelope.to == "*":
                failed = BriefFailed.model_validate(envelope.payload)
                raise BriefError(failed.reason.value, failed.message)
            if envelope.type == "error" and envelope.to == CLIENT:
                raise BriefError(*_refused(envelope))
            who = envelope.to if envelope.to != "*" else who


async def _next(bus: Bus, workflow: Workflow, passing: AsyncGenerator[Sighting], timeout_s: float) -> Sighting | None:
    """The next sighting, or None after `timeout_s`. Silence may mean that the broker is gone: then BrokerError."""
    deadline = time.monotonic() + timeout_s
    arriving = asyncio.ensure_future(anext(passing))
    try:
        while (left := deadline - time.monotonic()) > 0:
            if (await asyncio.wait({arriving}, timeout=min(left, PROBE_S)))[0]:
                return arriving.result()
            await WorkflowState(bus.connection, workflow.id).read(ORDER)
        return None
    finally:
        arriving.cancel()
        await asyncio.gather(arriving, return_exceptions=True)


def _silence(who: str, order: Order) -> str:
    line = f"nothing heard for {order.timeout_s:g} s while waiting for the {who}"
    if order.remote:
        return f"{line}; is it running? bus run agents.{who}:{who}"
    return f"{line}; try again with a longer --timeout"


def _dead(sighting: Sighting, envelope: Envelope, workflow_id: str) -> tuple[str, str]:
    code = sighting.headers.get("Bus-Dead-Code", "internal.error")
    reason = sighting.headers.get("Bus-Dead-Reason", "no reason given")
    if code in ("protocol.budget_exhausted", "protocol.expired"):
        return code, f"the budget is used up ({reason}); begin anew with a larger one; see: bus trace {workflow_id}"
    return code, f"{envelope.to} gave up on {envelope.type}: {code}: {reason}; see: bus dead show {sighting.seq}"


def _refused(envelope: Envelope) -> tuple[str, str]:
    payload = envelope.payload if isinstance(envelope.payload, dict) else {}
    error = payload.get("error") or {}
    code = str(error.get("code", "internal.error"))
    return code, f"{envelope.sender} refused it: {code}: {error.get('message', 'no reason given')}; see: bus dead ls"


async def _settled_story(bus: Bus, workflow_id: str) -> Story:
    """The story once nothing is open; agents report what they completed shortly after the result."""
    story = await bus.trace(workflow_id)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STORY_WAIT_S):
            while story.waits:
                await asyncio.sleep(STORY_POLL_S)
                story = await bus.trace(workflow_id)
    return story


def exit_code(problem: BriefError | BusError) -> int:
    """1: the answer is no; 3: the broker cannot be reached."""
    return 3 if isinstance(problem, BusError) and problem.info.code == "broker.unavailable" else 1
