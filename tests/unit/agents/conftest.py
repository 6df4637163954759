"""The three agents without a bus: their pure parts, with the drafts arriving in any order."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from agents.assembling import assemble
from agents.planning import plan
from agents.reviewing import Draft, Revision, Standing, standing
from agents.sources import split_lines
from agents.writing import Section, draft, revise
from schemas.brief import Plan, SourceRef, Theme


@dataclass(frozen=True)
class Made:
    """A brief made without a bus."""

    themes: list[Theme]
    standing: Standing
    revisions: list[Revision]
    markdown: str


Make = Callable[..., Made]


@pytest.fixture(scope="session")
def make() -> Make:
    """Makes a brief from texts by name; `seed` shuffles the order of arrival and of the sources."""

    def run(goal: str, texts: Mapping[str, str], *, sections: int = 4, rounds: int = 2, seed: int = 0) -> Made:
        chance = random.Random(seed)
        names = list(texts)
        chance.shuffle(names)
        themes = plan(goal, sections, {name: texts[name] for name in names})
        lines = {name: split_lines(text) for name, text in texts.items()}
        drafts: dict[tuple[int, int], Draft] = {}
        sent: list[Revision] = []
        inbox: list[Theme | Revision] = list(themes)
        reached: Standing | None = None
        while inbox:
            work = inbox.pop(chance.randrange(len(inbox)))
            key, section = _write(themes, work)
            drafts[key] = Draft(section.sentences, section.exhausted)
            reached = standing(goal, themes, rounds, drafts, lines)
            fresh = [revision for revision in reached.revisions if revision not in sent]
            sent += fresh
            inbox += fresh
        assert reached is not None, "no theme was found"
        assert reached.is_finished
        sources = [SourceRef(file=name, sha256="0" * 64, size_bytes=1) for name in sorted(texts)]
        ordered = Plan(goal=goal, rounds=rounds, sources=sources, themes=themes)
        return Made(themes, reached, sent, assemble(ordered, reached.accepted).decode())

    return run


def _write(themes: list[Theme], work: Theme | Revision) -> tuple[tuple[int, int], Section]:
    if isinstance(work, Theme):
        return (0, work.index), draft(work)
    reasons = [problem.reason for problem in work.problems]
    return (work.round, work.index), revise(themes[work.index], work.sentences, work.avoid, reasons)
