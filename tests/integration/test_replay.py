"""Record and replay: a changed agent beside what it had done (WF-8)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bus import Agent, Bus, BusError, Call, Message, PermanentFailure, Rejected, Settings
from bus.testing import replay, settled
from bus.workflow.comparison import Verdict
from bus.workflow.recording import Recording, record

calls: list[str] = []


def reviewing(*, limit: int = 3, word: str = "ok", note: bool = False, ask: bool = True) -> Agent:
    """A reviewer: sends short drafts back, once; remembers, calls a judge, and says when it is done."""
    reviewer = Agent("reviewer")

    @reviewer.on("review_request", phase="review")
    async def review(draft: Any, message: Message) -> None:
        seen = await message.state.update("seen", lambda old: {"count": (old or {"count": 0})["count"] + 1})
        if len(draft["words"]) < limit and seen["count"] < 3:
            await message.send("writer", "revision_request", {"why": "too short"})
            return
        text = (await message.artifacts.get(draft["artifact"])).decode()
        judged = await message.call("judge.rate", {"text": text, "word": word}) if ask else None
        if note:
            await message.send("archive", "note", {"seen": seen["count"]})
        await message.send("reviewer", "wrap_up", {"rating": judged.data if judged else None, "word": word})

    @reviewer.on("wrap_up")
    async def wrap_up(found: Any, message: Message) -> None:
        await message.send("tester", "done", found)

    return reviewer


def writing() -> Agent:
    writer = Agent("writer")

    @writer.on("draft_request")
    @writer.on("revision_request")
    async def write(payload: Any, message: Message) -> None:
        words = ["a"] if message.type == "draft_request" else ["a", "b", "c"]
        stored = await message.artifacts.put(" ".join(words).encode(), name="draft")
        await message.send("reviewer", "review_request", {"words": words, "artifact": stored.sha256})

    return writer


async def recorded(bus: Bus, settings: Settings, *, calls_too: bool = True) -> Recording:
    """Has the workflow made for real, and records it."""
    judge = Agent("judge")

    @judge.capability("judge.rate")
    async def rate(text: str, word: str) -> int:
        """Rates."""
        calls.append(text)
        return len(text)

    calls.clear()
    async with writing().running(settings), reviewing().running(settings), judge.running(settings):
        workflow = bus.workflow("letter", record=calls_too)
        await workflow.send("writer", "draft_request", {})
        await settled(bus, agents=["writer", "reviewer"])
    assert calls == ["a b c"]
    return await record(await bus.trace(workflow.id), bus.connection)


async def test_an_unchanged_agent_does_the_same(bus: Bus, settings: Settings, tmp_path: Path) -> None:
    """WF-8: also from a file, with its state, its artifacts, and the recorded answer instead of a call."""
    recording = await recorded(bus, settings)
    (tmp_path / "letter.json").write_bytes(recording.to_json())
    again = Recording.read(tmp_path / "letter.json")
    assert again.to_json() == recording.to_json()
    found = await replay(again, reviewing())
    found.check()
    assert [handling.type for handling in found.handlings] == ["review_request", "review_request", "wrap_up"]
    assert found.count() == {"same": 4, "changed": 0, "added": 0, "missing": 0}
    assert calls == ["a b c"]


async def test_what_a_changed_agent_does_otherwise_is_told(bus: Bus, settings: Settings) -> None:
    """WF-8: same, changed, added, missing; and what is not reached any more."""
    recording = await recorded(bus, settings)
    found = await replay(recording, reviewing(word="fine", note=True))
    assert found.count() == {"same": 1, "changed": 3, "added": 1, "missing": 0}
    lines = list(found.lines())
    assert "    arguments.word: 'ok' -> 'fine'" in lines
    assert "    payload.word: 'ok' -> 'fine'" in lines
    assert "review_request from writer: message note to archive is added" in lines
    with pytest.raises(AssertionError, match="is added"):
        found.check()
    (await replay(recording, reviewing(word="fine"), ignore=["payload.word", "arguments.*"])).check()
    eager = await replay(recording, reviewing(limit=1, ask=False))
    assert [(one.verdict, one.name, one.led_to) for one in eager.handlings[0].deeds if one.what == "message"] == [
        (Verdict.MISSING, "revision_request to writer", 3),
        (Verdict.ADDED, "wrap_up to reviewer", 0),
    ]
    assert eager.unfed == 1
    silent = await replay(recording, reviewing(ask=False))
    assert "call judge.rate is missing" in "\n".join(silent.lines())


async def test_a_changed_agent_that_fails_is_told(bus: Bus, settings: Settings) -> None:
    """WF-8: how the handling ended counts too."""
    recording = await recorded(bus, settings)
    broken = Agent("reviewer")

    @broken.on("review_request")
    async def review(draft: Any) -> None:
        raise PermanentFailure("no")

    found = await replay(recording, broken)
    assert "    outcome: 'handled' -> 'tool.execution_failed'" in found.lines()
    assert not found.is_same
    with pytest.raises(ValueError, match="no message to nobody"):
        await replay(recording, Agent("nobody"))


async def test_calls_that_were_not_recorded_have_no_answer(bus: Bus, settings: Settings) -> None:
    """WF-8: nothing is invented; the agent hears that nothing was recorded."""
    recording = await recorded(bus, settings, calls_too=False)
    assert recording.calls == ()
    found = await replay(recording, reviewing())
    assert "outcome agent.unavailable is changed" in "\n".join(found.lines())
    assert "call judge.rate is added" in "\n".join(found.lines())


async def test_what_cannot_be_recorded_is_refused(bus: Bus, settings: Settings) -> None:
    """WF-8: an unknown workflow, one that still runs, a file that is none."""
    with pytest.raises(BusError, match="is known"):
        await record(await bus.trace("nothing"), bus.connection)
    async with writing().running(settings):
        workflow = bus.workflow("open")
        await workflow.send("writer", "draft_request", {})
        await settled(bus, agents=["writer"])
    slow = Agent("reviewer")
    async with slow.running(settings):
        pass
    with pytest.raises(BusError, match="only what has ended"):
        await record(await bus.trace(workflow.id), bus.connection)
    for wrong, code in (
        (b"{not json", "protocol.malformed"),
        (b"[]", "protocol.malformed"),
        (b'{"format": 9}', "protocol.unsupported_version"),
        (
            b'{"format":1,"workflow_id":"w","messages":[],"calls":[{"cause":3}],"documents":[],"artifacts":{}}',
            "protocol.malformed",
        ),
    ):
        with pytest.raises(Rejected) as refused:
            Recording.from_json(wrong)
        assert refused.value.info.code == code


async def test_recording_calls_costs_nothing_else(bus: Bus, settings: Settings) -> None:
    """WF-8: calls two levels deep are recorded with who made them, and the caller hears its result as ever."""
    outer, inner, asker = Agent("outer"), Agent("inner"), Agent("asker")
    heard: list[Any] = []

    @inner.capability("inner.double")
    async def double(n: int) -> int:
        """Doubles."""
        return 2 * n

    @outer.capability("outer.quadruple")
    async def quadruple(n: int, call: Call) -> int:
        """Doubles twice."""
        once = await call.call("inner.double", {"n": n})
        return int((await call.call("inner.double", {"n": once.data})).data)

    @asker.on("ask")
    async def ask(n: Any, message: Message) -> None:
        heard.append((await message.call("outer.quadruple", {"n": n})).data)

    async with inner.running(settings), outer.running(settings), asker.running(settings):
        workflow = bus.workflow("deep", record=True)
        await workflow.send("asker", "ask", 3)
        await settled(bus, agents=["asker"])
    recording = await record(await bus.trace(workflow.id), bus.connection)
    assert heard == [12]
    assert sorted((call.caller, call.capability, call.arguments["n"]) for call in recording.calls) == [
        ("asker", "outer.quadruple", 3),
        ("outer", "inner.double", 3),
        ("outer", "inner.double", 6),
    ]
    assert len(recording) == 1
