"""The writer: makes a section from candidate passages, and makes it again when the reviewer asks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from agents.contracts import contracts
from agents.library import is_abandoned
from agents.writing import Section, draft, revise
from bus import Agent, Message
from schemas.brief import AgentMessage, DraftRequest, ReviewRequest

writer = Agent("writer", contracts=[contracts])


@writer.on("draft_request", phase="execute")
async def write(request: DraftRequest, message: Message) -> None:
    """Answers with a `review_request`: the first version of the section."""
    if await is_abandoned(message):
        return
    async with _alone(message, "execute", request.theme.index):
        section = await asyncio.to_thread(draft, request.theme)
        await _hand_in(message, request.theme.index, 0, section)


@writer.on("agent_message", phase="revision")
async def rewrite(request: AgentMessage, message: Message) -> None:
    """Answers with a `review_request`: the section without what the reviewer refused."""
    if await is_abandoned(message):
        return
    reasons = [problem.reason for problem in request.problems]
    async with _alone(message, "revision", request.index):
        section = await asyncio.to_thread(revise, request.theme, request.sentences, request.avoid, reasons)
        await _hand_in(message, request.index, request.round, section)


@contextlib.asynccontextmanager
async def _alone(message: Message, phase: str, section: int) -> AsyncIterator[None]:
    """While it runs, no other replica writes this section."""
    if message.workflow_id is None or await message.workflow.record() is None:
        yield
        return
    async with message.slot(phase, key=f"section {section}", limit=1):
        yield


async def _hand_in(message: Message, index: int, number: int, section: Section) -> None:
    answer = ReviewRequest(index=index, round=number, sentences=list(section.sentences), is_exhausted=section.exhausted)
    await message.send("reviewer", "review_request", answer, phase="review", role="assistant")
