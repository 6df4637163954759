"""The reviewer's verdicts and its rounds (WF-5): evidence from the sources alone, the same from any order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agents.reviewing import Draft, check, standing
from schemas.brief import MIN_SENTENCES, Passage, Quote, Reason, Theme

LINES = {
    "a.md": [
        "The pump lifts water from the river.",
        "A second pump waits for the first one to fail. Its valve is",
        "checked every week. The pump house has a roof of copper.",
        "Bread is baked in ovens all over town.",
        "Nobody sleeps in the house of the pump at night.",
    ],
    "b.md": ["From the river the pump lifts water.", "Rust eats the pump from within.", "It is replaced in May."],
}


def quote(file: str, line: int, text: str) -> Quote:
    return Quote(file=file, line=line, text=text)


LIFTS = quote("a.md", 1, LINES["a.md"][0])
WAITS = quote("a.md", 2, "A second pump waits for the first one to fail.")
VALVE = quote("a.md", 2, "Its valve is checked every week.")
ROOF = quote("a.md", 3, "The pump house has a roof of copper.")
BREAD = quote("a.md", 4, LINES["a.md"][3])
SLEEPS = quote("a.md", 5, LINES["a.md"][4])
LIFTS_AGAIN = quote("b.md", 1, LINES["b.md"][0])
RUST = quote("b.md", 2, LINES["b.md"][1])
MAY = quote("b.md", 3, LINES["b.md"][2])
ALL = [LIFTS, WAITS, VALVE, ROOF, BREAD, SLEEPS, LIFTS_AGAIN, RUST, MAY]


def theme(index: int, candidates: Sequence[Quote] = tuple(ALL)) -> Theme:
    return Theme(
        index=index,
        question="What about the pump?",
        keywords=["valv"],
        candidates=[
            Passage(file=q.file, line=q.line, text=q.text, score=1, order=order) for order, q in enumerate(candidates)
        ],
    )


def found(sentences: Sequence[Quote], *, others: Sequence[Quote] = (), exhausted: bool = False) -> list[Reason]:
    draft = Draft(tuple(sentences), exhausted)
    problems = check("the pump", theme(1), draft, {0: Draft(tuple(others), False)}, LINES)
    return [problem.reason for problem in problems]


def test_a_good_section_passes() -> None:
    assert found([LIFTS, WAITS, VALVE, ROOF]) == []


@pytest.mark.parametrize(
    "wrong",
    [
        quote("a.md", 2, "The pump lifts water from the river."),
        quote("a.md", 1, "The pump lifts wine from the river."),
        quote("a.md", 99, "The pump lifts water from the river."),
        quote("c.md", 1, "The pump lifts water from the river."),
        quote("a.md", 3, "Its valve is checked every week."),
    ],
)
def test_a_citation_that_is_not_verbatim_where_it_says_is_missing_evidence(wrong: Quote) -> None:
    assert found([wrong, WAITS, ROOF, SLEEPS]) == [Reason.MISSING_EVIDENCE]


def test_a_sentence_without_a_word_of_the_question_or_theme_is_off_topic() -> None:
    assert found([LIFTS, WAITS, BREAD, ROOF]) == [Reason.OFF_TOPIC]


def test_a_sentence_that_leans_on_its_neighbour_is_on_its_topic() -> None:
    assert found([LIFTS, WAITS, RUST, MAY]) == []
    assert found([LIFTS, WAITS, BREAD, MAY]) == [Reason.OFF_TOPIC, Reason.OFF_TOPIC]


def test_the_same_said_elsewhere_or_twice_is_redundant() -> None:
    assert found([LIFTS, WAITS, ROOF], others=[LIFTS]) == [Reason.REDUNDANT]
    assert found([LIFTS_AGAIN, WAITS, ROOF], others=[LIFTS]) == [Reason.REDUNDANT]
    assert found([LIFTS, LIFTS_AGAIN, WAITS, ROOF]) == [Reason.REDUNDANT]


def test_too_short_unless_the_sources_have_no_more() -> None:
    assert found([LIFTS, WAITS]) == [Reason.TOO_SHORT]
    assert found([LIFTS, WAITS], exhausted=True) == []
    assert found([]) == [Reason.TOO_SHORT]


def test_the_gravest_problem_comes_first_and_each_is_one_line() -> None:
    wrong = quote("c.md", 1, "Nothing like the pump.")
    draft = Draft((LIFTS, BREAD, wrong), exhausted=False)
    problems = check("the pump", theme(1), draft, {0: Draft((LIFTS,), False)}, LINES)
    assert [problem.reason for problem in problems] == [
        Reason.MISSING_EVIDENCE,
        Reason.OFF_TOPIC,
        Reason.REDUNDANT,
    ]
    assert [problem.other_index for problem in problems] == [None, None, 0]
    assert all("\n" not in problem.detail for problem in problems)


GOOD = Draft((LIFTS, WAITS, ROOF), False)
OTHER = Draft((RUST, MAY, SLEEPS), False)
THEMES = [theme(0), theme(1)]


def stand(drafts: dict[tuple[int, int], Draft], rounds: int = 2) -> object:
    return standing("the pump", THEMES, rounds, drafts, LINES)


def test_a_round_waits_for_all_its_sections() -> None:
    reached = standing("the pump", THEMES, 2, {(0, 1): GOOD}, LINES)
    assert (reached.round, reached.waiting_for, reached.revisions) == (0, frozenset({0}), ())
    assert not reached.is_finished


def test_of_two_sections_that_say_the_same_the_later_goes_back_with_what_is_taken() -> None:
    reached = standing("the pump", THEMES, 2, {(0, 0): GOOD, (0, 1): GOOD}, LINES)
    assert (reached.round, reached.waiting_for) == (1, frozenset({1}))
    (revision,) = reached.revisions
    assert (revision.index, revision.round) == (1, 1)
    assert {problem.reason for problem in revision.problems} == {Reason.REDUNDANT}
    assert {q.text for q in revision.avoid} == {LIFTS.text, LIFTS_AGAIN.text, WAITS.text, ROOF.text}
    assert revision.sentences == GOOD.sentences


def test_drafts_that_were_not_due_change_nothing() -> None:
    drafts = {(0, 0): GOOD, (0, 1): OTHER}
    finished = standing("the pump", THEMES, 2, drafts, LINES)
    assert finished.is_finished
    assert standing("the pump", THEMES, 2, drafts | {(1, 0): OTHER, (2, 1): GOOD, (0, 7): GOOD}, LINES) == finished


def test_after_the_last_round_it_is_accepted_with_remarks() -> None:
    drafts = {(0, 0): GOOD, (0, 1): GOOD, (1, 1): Draft((LIFTS, RUST, MAY, SLEEPS), False)}
    reached = standing("the pump", THEMES, 1, drafts, LINES)
    assert reached.is_finished
    assert reached.accepted[0].sentences == GOOD.sentences
    assert (reached.accepted[0].revisions, reached.accepted[1].revisions) == (0, 1)
    # One sentence more than needed was redundant: it goes without a word.
    assert reached.accepted[1].sentences == (RUST, MAY, SLEEPS)
    assert reached.accepted[1].remarks == ()


def test_what_is_not_in_the_sources_never_gets_into_the_brief() -> None:
    invented = quote("a.md", 1, "The pump sings.")
    drafts = {(0, 0): GOOD, (0, 1): Draft((invented, RUST, MAY), False)}
    reached = standing("the pump", THEMES, 0, drafts, LINES)
    assert reached.accepted[1].sentences == (RUST, MAY)
    assert len(reached.accepted[1].sentences) < MIN_SENTENCES
    assert reached.accepted[1].remarks[0].startswith("One sentence was left out: not verbatim at a.md:1")


def test_the_verdict_is_the_same_when_it_is_reached_again_later() -> None:
    """A handler that died after storing its draft runs again when others have gone on."""
    drafts = {(0, 0): GOOD, (0, 1): GOOD}
    before = standing("the pump", THEMES, 2, drafts, LINES)
    drafts[1, 1] = Draft((RUST, BREAD, SLEEPS), False)
    after = standing("the pump", THEMES, 2, drafts, LINES)
    assert [(r.index, r.round) for r in before.revisions] == [(1, 1)]
    assert [(r.index, r.round) for r in after.revisions] == [(1, 2)]
    assert standing("the pump", THEMES, 2, dict(reversed(drafts.items())), LINES) == after
