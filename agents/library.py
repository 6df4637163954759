"""What the agents share: the sources from the artifacts, and whether anybody still waits for the brief."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bus import Message
from bus.workflow.artifacts import Artifacts
from bus.workflow.phases import Phase, Phases
from schemas.brief import SourceRef

AT_ONCE = 8
# Each begins when the one before it has ended; a section has one writer at a time, over all replicas.
PHASES = Phases(["plan", Phase("execute", limit=1), "review"])
# The workflow's document with which a client says that it has gone.
ORDER = "order"
ABANDONED = {"abandoned": True}


async def is_abandoned(message: Message) -> bool:
    """Whether the client has given this brief up (Ctrl-C, time-out, a failure): no need to go on."""
    return await message.state.read(ORDER) == ABANDONED


async def reach(message: Message, phase: str) -> bool:
    """Begins a phase and ends those before it, also where an agent of an older release has not done its part.

    False for a workflow without a record, which has no phases: it was begun by another kind of client.
    """
    record = await message.workflow.record() if message.workflow_id is not None else None
    if record is None:
        return False
    for before in PHASES.order[: [one.name for one in PHASES.order].index(phase)]:
        state = record.phases.get(before.name)
        if state is None:
            await message.workflow.enter(before.name)
        if state is None or state.ended_at is None:
            await message.workflow.leave(before.name)
    await message.workflow.enter(phase)
    return True


async def fetch(artifacts: Artifacts, sources: Sequence[SourceRef]) -> dict[str, str]:
    """The texts by name. Raises what `Artifacts.get` raises, and UnicodeDecodeError for bytes that are no text."""
    texts: dict[str, str] = {}
    for start in range(0, len(sources), AT_ONCE):
        part = sources[start : start + AT_ONCE]
        # All are awaited, also when one fails: nothing goes on behind the handler's back.
        contents = await asyncio.gather(*(artifacts.get(ref.sha256) for ref in part), return_exceptions=True)
        for ref, content in zip(part, contents, strict=True):
            if isinstance(content, BaseException):
                raise content
            texts[ref.file] = content.decode("utf-8-sig")
    return texts
