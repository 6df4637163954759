"""The example across a release: a writer or a reviewer of the release before, and the brief is the same (SCH-4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from agents.planner import planner
from agents.reviewer import review, reviewer
from agents.writer import rewrite, writer
from agents.writing import draft
from bus import Agent, Bus, Message, Settings
from bus.testing import Ledger, check_chain, settled
from schemas import examples
from schemas.brief import DraftRequest, PlanRequest, Quote, ReviewRequest, SourceRef

TEXT = "\n\n".join(
    f"The fog horn number {n} warns ships of the northern reef. The lighthouse number {n} keeps ships safe in fog. "
    f"The pilot boat number {n} guides ships past wrecks."
    for n in range(12)
)


class OldReviewRequest(BaseModel):
    """`review_request@1.0`, as `schemas/review_request/1.0.json` keeps it."""

    __contract__ = "review_request@1.0"
    index: int
    round: int
    sentences: list[Quote]
    exhausted: bool = False


def old_writer() -> Agent:
    """The writer of the release before: what it hands in is of major 1, and nothing casts it."""
    agent = Agent("writer")

    @agent.on("draft_request", phase="execute")
    async def old_write(request: DraftRequest, message: Message) -> None:
        section = await asyncio.to_thread(draft, request.theme)
        answer = OldReviewRequest(
            index=request.theme.index, round=0, sentences=list(section.sentences), exhausted=section.exhausted
        )
        await message.send("reviewer", "review_request", answer, phase="review")

    agent.on("agent_message", phase="revision")(rewrite)
    return agent


def old_reviewer() -> Agent:
    """The reviewer of the release before: it reads major 1 and no other."""
    agent = Agent("reviewer")

    @agent.on("review_request", phase="review")
    async def old_review(request: OldReviewRequest, message: Message) -> None:
        fields = request.model_dump(mode="json")
        await review(ReviewRequest(is_exhausted=fields.pop("exhausted"), **fields), message)

    return agent


@asynccontextmanager
async def running(settings: Settings, *agents: Agent) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for agent in agents:
            await stack.enter_async_context(agent.running(settings))
        yield


async def brief_by(bus: Bus, settings: Settings, *agents: Agent) -> tuple[bytes, set[str | None]]:
    """The brief that these agents make, and the contracts of the review requests that passed."""
    async with running(settings, planner, *agents):
        stored = await bus.artifacts.put(TEXT.encode(), name="fog.md")
        source = SourceRef(file="fog.md", sha256=stored.sha256, size_bytes=stored.size_bytes)
        goal = "How are ships kept safe in fog?"
        workflow = bus.workflow("brief")
        await workflow.send("planner", "plan_request", PlanRequest(goal=goal, sources=[source]), phase="plan")
        await settled(bus, 20)
        ledger = await Ledger.read(bus)
        ledger.check()
        assert not ledger.dead
    passed = bus.watch(workflow_id=workflow.id, since=datetime.fromtimestamp(0, UTC), follow=False)
    envelopes = [sighting.envelope async for sighting in passed if sighting.envelope is not None]
    (ready,) = [one for one in envelopes if one.type == "brief_ready"]
    schemas = {one.schema for one in envelopes if one.type == "review_request"}
    return await bus.artifacts.get(ready.payload["artifact"]["sha256"]), schemas


@pytest.fixture
async def expected(bus: Bus, settings: Settings) -> bytes:
    content, schemas = await brief_by(bus, settings, writer, reviewer)
    assert schemas == {"review_request@2.0"}
    return content


async def test_an_old_writer_and_a_new_reviewer(bus: Bus, settings: Settings, expected: bytes) -> None:
    content, schemas = await brief_by(bus, settings, old_writer(), reviewer)
    assert "review_request@1.0" in schemas
    assert content == expected


async def test_a_new_writer_and_an_old_reviewer(bus: Bus, settings: Settings, expected: bytes) -> None:
    content, schemas = await brief_by(bus, settings, writer, old_reviewer())
    assert schemas == {"review_request@1.0"}
    assert content == expected


async def test_old_and_new_of_both_at_once(bus: Bus, settings: Settings, expected: bytes) -> None:
    """Four replicas in the middle of an upgrade."""
    content, _ = await brief_by(bus, settings, writer, reviewer, old_writer(), old_reviewer())
    assert content == expected


def test_the_golden_samples_of_every_version() -> None:
    old: dict[str, Any] = {name: value for name, value in examples.REVIEW_REQUEST.items() if name != "is_exhausted"}
    samples = {"1.0": [old, {**old, "exhausted": True}, {**old, "exhausted": False}], "2.0": [examples.REVIEW_REQUEST]}
    read = check_chain(reviewer, "review_request", orjson.loads(orjson.dumps(samples)))
    assert [one.is_exhausted for one in read["1.0"]] == [False, True, False]
    check_chain(writer, "agent_message", {"1.0": [examples.AGENT_MESSAGE]})
