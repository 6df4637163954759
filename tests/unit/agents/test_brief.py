# ruff: noqa: RUF001 - Chinese punctuation is meant
"""A whole brief without a bus (WF-5): verbatim, the same whatever the order of arrival, revised when it must be."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.planning import plan
from agents.sources import split_lines
from schemas.brief import MAX_SENTENCES, MIN_SENTENCES, Reason, Theme

from .conftest import Made, Make

LIGHTHOUSE = """# The lighthouse

## The lamp

The lamp of the lighthouse burns oil and needs a clean wick every evening. The keeper trims the wick of the
lamp before dusk. A lens around the lamp gathers its light into a beam that ships see from twenty miles.
Salt on the lens weakens the beam, so the keeper wipes the lens each morning with vinegar. The oil for the
lamp is stored in a vault of stone away from the stairs.

## The fog horn

In fog the beam of the lighthouse is useless and the horn takes its place. The horn is blown by steam, one
blast every ninety seconds. Ships know the lighthouse by the rhythm of its horn. Steam for the horn needs
half an hour to rise, so the keeper lights the boiler when the horizon blurs. A broken horn is replaced by a
bell that two people ring in turns.

## The keeper

Two keepers share the lighthouse and change watch at midnight. The keeper writes every passing ship into the
log of the lighthouse. Food comes by boat once a month when the sea allows it. A keeper who falls ill hoists
a yellow flag. The log is sent to the harbour office at the end of the year.
"""

KITCHEN = """# Bread

Dough rests for two hours under a cloth. Flour from winter wheat takes more water than flour from spring wheat.
The oven must be hot before the loaf goes in. Salt slows the yeast down. A loaf is done when its base sounds
hollow.
"""

CHINESE = """# 灯塔

## 灯

灯塔的灯用油点亮，看守人每天傍晚修剪灯芯。灯外面的透镜把光聚成一束，二十海里以外的船也看得见。
透镜上的盐会让光变弱，所以看守人每天早上用醋擦透镜。灯油存放在石头砌的地窖里。

## 雾笛

有雾的时候灯塔的光没有用，雾笛代替它工作。雾笛用蒸汽吹响，每九十秒一声。
船员听雾笛的节奏就知道是哪一座灯塔。锅炉要烧半个小时才有蒸汽，看守人一看到起雾就点火。
"""

TEXTS = {"docs/lighthouse.md": LIGHTHOUSE, "kitchen.txt": KITCHEN}
CITED = re.compile(r"^(?P<text>.+) \[(?P<file>[^\[\]]+):(?P<line>\d+)\]$")


def cited(markdown: str) -> list[list[tuple[str, str, int]]]:
    """The sentences of each section with file and line, read from the finished text alone."""
    sections: list[list[tuple[str, str, int]]] = []
    for line in markdown.splitlines():
        if line.startswith("## "):
            sections.append([])
        elif sections and (match := CITED.match(line)):
            sections[-1].append((match["text"], match["file"], int(match["line"])))
    return sections[:-1]


def assert_verbatim(markdown: str, texts: Mapping[str, str]) -> None:
    """By other means than the product: without white space, the sentence starts on its line."""
    for text, file, number in (sentence for section in cited(markdown) for sentence in section):
        lines = ["".join(line.split()) for line in split_lines(texts[file])]
        where = "".join(lines[number - 1 :]).find("".join(text.split()))
        assert 0 <= where < len(lines[number - 1]), f"{text!r} is not at {file}:{number}"


def test_a_brief_answers_its_goal_section_by_section(make: Make) -> None:
    made = make("How does the lighthouse guide ships?", TEXTS, sections=3)
    sections = cited(made.markdown)
    assert made.markdown.startswith("# How does the lighthouse guide ships?\n\n## 1. What do the sources say about ")
    assert len(sections) == 3
    for section in sections:
        assert MIN_SENTENCES <= len(section) <= MAX_SENTENCES
        assert {file for _, file, _ in section} == {"docs/lighthouse.md"}
        assert section == sorted(section, key=lambda sentence: sentence[2])
    everything = [text for section in sections for text, _, _ in section]
    assert len(set(everything)) == len(everything)
    assert "\nRead, but not cited: kitchen.txt\n" in made.markdown
    assert_verbatim(made.markdown, TEXTS)


def test_a_brief_in_chinese(make: Make) -> None:
    texts = {"灯塔.md": CHINESE, **TEXTS}
    made = make("灯塔怎样给船指路？", texts, sections=2)
    assert "## 1. 关于" in made.markdown
    assert {file for section in cited(made.markdown) for _, file, _ in section} == {"灯塔.md"}
    assert_verbatim(made.markdown, texts)


@pytest.mark.parametrize("seed", range(1, 7))
@pytest.mark.parametrize("goal", ["How does the lighthouse guide ships?", "keeper", "灯塔怎样给船指路？"])
def test_the_order_of_arrival_changes_nothing(make: Make, goal: str, seed: int) -> None:
    texts = {"灯塔.md": CHINESE, **TEXTS}
    assert make(goal, texts, seed=seed).markdown == make(goal, texts).markdown


def test_nothing_relevant_gives_no_theme() -> None:
    assert plan("quantum chromodynamics", 4, TEXTS) == []
    assert plan("灯塔", 4, TEXTS) == []
    assert plan("lighthouse", 4, {}) == []


@pytest.mark.parametrize("sections", [1, 2, 12])
def test_there_are_never_more_sections_than_asked_for_nor_than_there_is_material(sections: int) -> None:
    themes = plan("lighthouse", sections, TEXTS)
    assert 1 <= len(themes) <= min(sections, 5)
    assert [theme.index for theme in themes] == list(range(len(themes)))


def test_themes_hold_what_a_writer_needs() -> None:
    for theme in plan("How does the lighthouse guide ships?", 3, TEXTS):
        scores = [passage.score for passage in theme.candidates if passage.score]
        assert max(scores) == 1.0
        assert theme.question.endswith("?")
        assert len({(p.file, p.order) for p in theme.candidates}) == len(theme.candidates)


def redundant_sources() -> dict[str, str]:
    """Two documents with the same best paragraph, so that two writers who know nothing of each other take it."""
    shared = (
        "A turbine in strong wind turns its blades out of the wind and brakes its rotor to protect itself. "
        "The turbine protects its gear from strong wind by a clutch that slips.\n"
    )
    return {
        "north.md": f"# Blades\n\n{shared}Ice on the blades throws the rotor of a turbine off balance. "
        "Blades of a turbine are painted white and sanded smooth. A crane lifts new blades to the turbine "
        "when there is little wind. Lightning enters the turbine by a copper cap on the blades.\n",
        "south.md": f"# Brakes\n\n{shared}The brakes of a turbine are discs of steel behind the gear. "
        "Worn brakes squeal long before the turbine fails. Oil for the brakes of a turbine must not freeze. "
        "Two people test the brakes of each turbine in autumn before the strong wind comes.\n",
    }


def problems(made: Made) -> set[Reason]:
    return {problem.reason for revision in made.revisions for problem in revision.problems}


def test_sources_that_repeat_themselves_force_a_revision(make: Make) -> None:
    texts = redundant_sources()
    made = make("How does a turbine protect itself in strong wind?", texts, sections=2, rounds=3)
    assert Reason.REDUNDANT in problems(made)
    assert all(section.remarks == () for section in made.standing.accepted)
    everything = [text for section in cited(made.markdown) for text, _, _ in section]
    assert len(set(everything)) == len(everything)
    assert_verbatim(made.markdown, texts)


def test_without_rounds_the_first_drafts_are_accepted_with_remarks(make: Make) -> None:
    made = make("How does a turbine protect itself in strong wind?", redundant_sources(), sections=2, rounds=0)
    assert made.revisions == []
    assert "> Remark: Redundant: section 1 says the same: " in made.markdown


def test_a_section_with_too_little_is_asked_for_more_and_gets_it(make: Make) -> None:
    texts = {
        "kites.md": "# Kites\n\nA kite of silk flies higher than any other kite of silk or paper.\n\n"
        "The tail of a kite keeps it steady in gusts of autumn.\n\n"
        "A long line of hemp holds the kite when it pulls.\n"
    }
    made = make("Which kite of silk flies higher?", texts, sections=1)
    assert problems(made) == {Reason.TOO_SHORT}
    assert [len(section) for section in cited(made.markdown)] == [MIN_SENTENCES]
    assert_verbatim(made.markdown, texts)


def test_a_source_that_has_no_more_gives_a_short_section_with_a_remark(make: Make) -> None:
    made = make("kites", {"kites.md": "A kite of silk flies higher than one of paper.\n\nBread is baked in ovens."})
    assert [len(section) for section in cited(made.markdown)] == [1]
    assert "> Remark: The sources say little about this." in made.markdown


def test_a_neighbour_that_does_not_belong_is_sent_away_again(make: Make) -> None:
    made = make("kites", {"kites.md": "A kite of silk flies higher than one of paper. Bread is baked in ovens."})
    assert problems(made) == {Reason.TOO_SHORT, Reason.OFF_TOPIC}
    assert [len(section) for section in cited(made.markdown)] == [1]


WORD = st.sampled_from(["lamp", "horn", "keeper", "ship", "fog", "bread", "oil", "灯塔", "雾笛", "`code`", "2.14"])
SENTENCE = st.lists(WORD, min_size=5, max_size=9).map(lambda words: "The " + " ".join(words) + ".")
PARAGRAPH = st.lists(SENTENCE, min_size=1, max_size=5).map(" ".join)
TEXT = st.lists(
    st.one_of(PARAGRAPH, st.sampled_from(["# Lamp", "## Horn", "- a keeper of the lamp in fog."])), max_size=8
)


@settings(max_examples=40)
@given(
    st.dictionaries(st.sampled_from(["a.md", "b.txt", "c.md"]), TEXT.map("\n\n".join), min_size=1), st.integers(0, 9)
)
def test_whatever_the_sources_the_brief_is_verbatim_and_repeatable(
    make: Make, texts: dict[str, str], seed: int
) -> None:
    goal = "lamp and horn in fog"
    themes: list[Theme] = plan(goal, 3, texts)
    if not themes:
        return
    made = make(goal, texts, sections=3, seed=seed)
    assert made.markdown == make(goal, texts, sections=3, seed=seed + 1).markdown
    assert_verbatim(made.markdown, texts)
    assert all(len(section) <= MAX_SENTENCES for section in cited(made.markdown))
