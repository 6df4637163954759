"""The reviewer: collects the drafts of a round, checks them together, sends back or finishes.

Any replica may get any draft. Each puts its draft into the workflow's document `review`, and whoever finds the
round complete reviews it. Two of them may, or one may do it again after a crash: the verdict is the same and
so are the ids of what is sent, so it counts once.
"""

from __future__ import annotations

import asyncio
from typing import Any

from agents.assembling import assemble
from agents.contracts import contracts
from agents.library import fetch, is_abandoned, reach
from agents.reviewing import Draft, Revision, Standing, standing
from agents.sources import split_lines
from bus import Agent, Message, PermanentFailure
from bus.envelope import derive_message_id
from schemas.brief import (
    AgentMessage,
    ArtifactInfo,
    BriefReady,
    Plan,
    Quote,
    ReviewRequest,
    SectionSummary,
)

reviewer = Agent("reviewer", contracts=[contracts])

Drafts = dict[tuple[int, int], Draft]


@reviewer.on("review_request", phase="review")
async def review(request: ReviewRequest, message: Message) -> None:
    """Sends `agent_message` to the writer for sections that fail, or `brief_ready` to everybody at the end."""
    if await is_abandoned(message):
        return
    document = await message.state.read("plan")
    if document is None:
        raise PermanentFailure("this workflow has no plan; a brief begins with a plan_request to the planner")
    plan = Plan.model_validate(document)
    drafts, traceparents = await _keep(message, request)
    if any((0, theme.index) not in drafts for theme in plan.themes):
        return
    in_phases = await reach(message, "review")
    # Whoever finds the round complete reviews what others have brought.
    message.link(traceparents)
    cited = {quote.file for draft in drafts.values() for quote in draft.sentences}
    texts = await fetch(message.artifacts, [source for source in plan.sources if source.file in cited])
    reached = await asyncio.to_thread(_judge, plan, drafts, texts)
    if reached.is_finished:
        await _finish(message, plan, reached)
        if in_phases:
            await _leave_all(message)
    for revision in reached.revisions:
        await _send_back(message, plan, revision)


async def _leave_all(message: Message) -> None:
    """Ends the phases that still run, each with a checkpoint."""
    record = await message.workflow.record()
    for phase in ("review", "revision"):
        if record is not None and phase in record.phases:
            await message.workflow.leave(phase)


async def _keep(message: Message, request: ReviewRequest) -> tuple[Drafts, list[str | None]]:
    """Adds a draft to the workflow's drafts and returns all of them; the first for a round and section stays.

    Beside them the spans in which they were brought, for those of this round.
    """
    # The document keeps its own names: replicas of an older build read and write it too.
    fresh = {**request.model_dump(mode="json", include={"sentences"}), "exhausted": request.is_exhausted}
    fresh["traceparent"] = message.traceparent

    def add(document: dict[str, Any] | None) -> dict[str, Any]:
        rounds = dict((document or {}).get("drafts", {}))
        key = str(request.round)
        rounds[key] = {str(request.index): fresh} | rounds.get(key, {})
        return {"drafts": rounds}

    document = await message.state.update("review", add)
    drafts = {
        (int(number), int(index)): Draft(
            tuple(Quote.model_validate(quote) for quote in kept["sentences"]), kept["exhausted"]
        )
        for number, by_index in document["drafts"].items()
        for index, kept in by_index.items()
    }
    round_of_this = document["drafts"][str(request.round)].values()
    return drafts, [kept.get("traceparent") for kept in round_of_this]


def _judge(plan: Plan, drafts: Drafts, texts: dict[str, str]) -> Standing:
    lines = {file: split_lines(text) for file, text in texts.items()}
    return standing(plan.goal, plan.themes, plan.rounds, drafts, lines)


async def _send_back(message: Message, plan: Plan, revision: Revision) -> None:
    request = AgentMessage(
        reason=revision.problems[0].reason,
        index=revision.index,
        round=revision.round,
        problems=list(revision.problems),
        sentences=list(revision.sentences),
        avoid=list(revision.avoid),
        theme=plan.themes[revision.index],
    )
    stable_id = _stable_id(message, "revision", str(revision.round), str(revision.index))
    await message.send("writer", "agent_message", request, phase="revision", role="assistant", message_id=stable_id)


async def _finish(message: Message, plan: Plan, reached: Standing) -> None:
    content = assemble(plan, reached.accepted)
    stored = await message.artifacts.put(content, name="brief.md", media_type="text/markdown")
    ready = BriefReady(
        goal=plan.goal,
        artifact=ArtifactInfo(
            name=stored.name,
            sha256=stored.sha256,
            size_bytes=stored.size_bytes,
            media_type=stored.media_type,
        ),
        sections=[
            SectionSummary(
                question=theme.question,
                sentences=len(section.sentences),
                revisions=section.revisions,
                remarks=list(section.remarks),
            )
            for theme, section in zip(plan.themes, reached.accepted, strict=True)
        ],
        sources=len(plan.sources),
        sections_with_remarks=sum(bool(section.remarks) for section in reached.accepted),
    )
    stable_id = _stable_id(message, "brief_ready")
    await message.send("*", "brief_ready", ready, status="success", role="assistant", message_id=stable_id)


def _stable_id(message: Message, *parts: str) -> str:
    """The same for every draft that may complete a round."""
    return derive_message_id(message.workflow_id or "", "reviewer", *parts)
