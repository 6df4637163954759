"""What a person sees (issue 2): phases with counts and one line a message, whatever comes twice or late."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from agents.progress import PhaseState, Progress
from agents.view import View
from bus import Envelope


def message(type: str, payload: dict[str, Any], to: str = "writer") -> Envelope:
    return Envelope(sender="planner", to=to, type=type, payload=payload)


def brief_messages() -> list[Envelope]:
    return [
        message("plan_request", {"sources": [{}, {}]}),
        message("draft_request", {"theme": {"index": 0, "question": "What?"}}),
        message("draft_request", {"theme": {"index": 1, "question": "Why?\nReally"}}),
        message("review_request", {"index": 0, "round": 0, "sentences": [{}, {}, {}]}),
        message("review_request", {"index": 1, "round": 0, "sentences": [{}]}),
        message("agent_message", {"index": 1, "round": 1, "reason": "too_short", "problems": [{"detail": "1 of 3"}]}),
    ]


def test_phases_are_counted_from_the_messages() -> None:
    progress = Progress()
    for envelope in brief_messages():
        progress.see(envelope)
    assert progress.phases() == {
        "plan": PhaseState(1, 1),
        "execute": PhaseState(2, 2),
        "review": PhaseState(1, 2),
        "revision": PhaseState(0, 1),
    }
    progress.see(message("review_request", {"index": 1, "round": 1, "sentences": [{}, {}, {}]}))
    progress.see(message("brief_ready", {"sections": [{}, {}]}, to="*"))
    assert all(state.is_done for state in progress.phases().values())


def test_what_comes_twice_counts_once_and_strange_payloads_do_no_harm() -> None:
    progress = Progress()
    first, *_ = brief_messages()
    assert progress.see(first) == "plan      2 sources"
    assert progress.see(first) is None
    assert progress.see(message("something_else", {"round": "x", "index": None})) is None
    assert progress.see(message("draft_request", {"theme": {"index": "y"}})) is not None


def test_off_a_terminal_there_is_one_plain_line_a_message() -> None:
    output = io.StringIO()
    with View(Console(file=output, width=40)) as view:
        for envelope in brief_messages():
            view.see(envelope)
    assert output.getvalue().splitlines() == [
        "plan      2 sources",
        "execute   section 1: What?",
        "execute   section 2: Why? Really",
        "review    section 1: 3 sentences",
        "review    section 2: 1 sentence",
        "revision  section 2: too_short: 1 of 3",
    ]


def test_on_a_terminal_the_phases_are_drawn_and_stay() -> None:
    output = io.StringIO()
    with View(Console(file=output, width=100, force_terminal=True, legacy_windows=False)) as view:
        for envelope in brief_messages():
            view.see(envelope)
    assert "execute" in output.getvalue()
    assert "2 of 2" in output.getvalue()


def test_quiet_prints_nothing() -> None:
    output = io.StringIO()
    with View(Console(file=output, force_terminal=True), quiet=True) as view:
        view.see(brief_messages()[0])
    assert output.getvalue() == ""
