"""Has a brief made on the bus: sends the order, follows the workflow, fetches the result."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TypeVar

from agents.library import ABANDONED, ORDER
from agents.planner import planner
from agents.reviewer import reviewer
from agents.sources import Source
from agents.writer import writer
from bus import BrokerError, Bus, BusError, Envelope, Settings, Sighting, Story, Workflow
from bus.workflow.state import WorkflowState
from schemas.brief import BriefFailed, BriefReady, PlanRequest, SourceRef

CLIENT = "brief"
# Agents of other machines may have other clocks; what is older than the workflow carries another id.
CLOCK_MARGIN = timedelta(minutes=2)
BROKER_AWAY_S = 30.0
PAUSE_S = 0.5
PROBE_S = 5.0
ABANDON_S = 2.0
STORY_WAIT_S = 3.0
STORY_POLL_S = 0.2

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be made, and how."""

    goal: str
    sources: Sequence[Source]
    sections: int
    rounds: int
    remote: bool
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Brief:
    """A finished brief: its bytes, what the reviewer says of it, and the workflow's messages."""

    workflow_id: str
    content: bytes
    ready: BriefReady
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
            workflow = bus.workflow("brief")
            try:
                references = [await _patiently(partial(_store, bus, source)) for source in order.sources]
                request = PlanRequest(goal=order.goal, sections=order.sections, rounds=order.rounds, sources=references)
                await workflow.send("planner", "plan_request", request, phase="plan")
                ready = await _patiently(partial(_follow, bus, workflow, order, see))
                content = await _patiently(partial(bus.artifacts.get, ready.artifact.sha256))
                workflow.finish()
            except BaseException as problem:
                _finish_without_brief(workflow, problem)
                await _abandon(bus, workflow.id)
                raise
        story = await _patiently(partial(_settled_story, bus, workflow.id))
        return Brief(workflow.id, content, ready, story)


def _finish_without_brief(workflow: Workflow, problem: BaseException) -> None:
    if isinstance(problem, BriefError):
        workflow.finish("error", error=problem.code)
    elif isinstance(problem, BusError):
        workflow.finish("error", error=problem.info.code)
    else:
        workflow.finish("cancelled" if isinstance(problem, asyncio.CancelledError) else "error")


async def _abandon(bus: Bus, workflow_id: str) -> None:
    """Tells the agents that nobody waits, so that what is left of this brief keeps nobody busy."""
    with contextlib.suppress(BusError, TimeoutError):
        async with asyncio.timeout(ABANDON_S):
            await WorkflowState(bus.connection, workflow_id).update(ORDER, lambda _: ABANDONED)


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


async def _follow(bus: Bus, workflow: Workflow, order: Order, see: Callable[[Envelope], None]) -> BriefReady:
    """Watches from the beginning until the brief is ready; waits `timeout_s` for each next message."""
    who = "planner"
    since = workflow.started_at - CLOCK_MARGIN
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
                raise BriefError(*_dead(sighting, envelope))
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


def _dead(sighting: Sighting, envelope: Envelope) -> tuple[str, str]:
    code = sighting.headers.get("Bus-Dead-Code", "internal.error")
    reason = sighting.headers.get("Bus-Dead-Reason", "no reason given")
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
