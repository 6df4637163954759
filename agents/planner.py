"""The planner: reads the sources, finds the themes, asks the writer for one section each."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from agents.library import fetch, is_abandoned, reach
from agents.planning import plan
from bus import Agent, Message
from schemas.brief import BriefFailed, DraftRequest, FailureReason, Plan, PlanRequest, Theme

planner = Agent("planner", concurrency=4)


@planner.on("plan_request", phase="plan")
async def plan_brief(request: PlanRequest, message: Message) -> None:
    """Sends one `draft_request` a theme, or `brief_failed` to everybody when no passage is relevant.

    Safe to run again at any point: the plan that was written first stays, and what is sent has the same ids.
    """
    if await is_abandoned(message):
        return
    in_phases = await reach(message, "plan")
    texts = await fetch(message.artifacts, request.sources)
    themes = await _plan(request, texts)
    if await is_abandoned(message):
        return
    if not themes:
        failed = BriefFailed(
            reason=FailureReason.NO_RELEVANT_PASSAGE,
            message=f"no passage in {len(texts)} source{'s' if len(texts) > 1 else ''} speaks about "
            f'"{request.goal}"; use words that stand in the sources, or name other sources',
        )
        await message.send("*", "brief_failed", failed, status="error", key="failed")
        return
    planned = Plan(
        goal=request.goal,
        rounds=request.rounds,
        sources=sorted(request.sources, key=lambda source: source.file),
        themes=themes,
    )

    def keep_first(document: dict[str, Any] | None) -> dict[str, Any]:
        return document or planned.model_dump(mode="json")

    kept = Plan.model_validate(await message.state.update("plan", keep_first))
    if in_phases:
        await message.workflow.leave("plan")
    for theme in kept.themes:
        draft = DraftRequest(theme=theme)
        await message.send(
            "writer", "draft_request", draft, phase="execute", role="assistant", key=f"theme:{theme.index}"
        )


async def _plan(request: PlanRequest, texts: dict[str, str]) -> list[Theme]:
    """Plans in a thread, which ends soon after this is cancelled."""
    unwanted = threading.Event()
    try:
        return await asyncio.to_thread(
            plan, request.goal, request.sections, texts, is_wanted=lambda: not unwanted.is_set()
        )
    finally:
        unwanted.set()
