# ruff: noqa: RUF001 - Chinese punctuation is meant
"""What the planner thinks: which passages of the sources answer the goal, and into which themes they fall.

Pure: the same goal and sources give the same themes, whatever order the sources come in.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

from agents import labels, themes
from agents.passages import MAX_RELEVANT, Pool, Scored, best_first, relevant, without_repeats
from agents.sentences import Sentence, read_sentences
from agents.words import pairs_only, tokens
from schemas.brief import MAX_CANDIDATES, MIN_SENTENCES, Passage, Theme

MAX_KEYWORDS = 8
MAX_UNIT = 12
# A theme that has this much less to say than the first one is not worth a section.
THEME_SHARE = 0.3
# Places among the candidates that are kept for the sentences which others lean on.
ROOM_FOR_CONTEXT = 8
CANDIDATE_SHARE = 0.3
MIN_CANDIDATES = 12
# A passage counts in full only for its own theme; elsewhere by how much it speaks of that one.
BARE_WEIGHT = 0.3
THEME_WEIGHT = 0.7
MEMBER_BONUS = 0.7
DECIMALS = 9
CHECK_EVERY = 1000


class Unwanted(Exception):
    """Nobody waits for the plan any more."""


def plan(
    goal: str, sections: int, sources: Mapping[str, str], *, is_wanted: Callable[[], bool] = lambda: True
) -> list[Theme]:
    """At most `sections` themes of the sources (texts by name) for the goal, the most relevant first.

    Empty when nothing in the sources speaks about the goal. Fewer themes than asked for when there is not
    enough material for each to have sentences of its own. A long plan asks `is_wanted` now and then, and raises
    Unwanted when it says no: a thread cannot be cancelled from outside.
    """
    everything: list[Sentence] = []
    for name in sorted(sources):
        for sentence in read_sentences(name, sources[name]):
            everything.append(sentence)
            if len(everything) % CHECK_EVERY == 0 and not is_wanted():
                raise Unwanted
    pool = Pool(everything)
    if not is_wanted():
        raise Unwanted
    answering = pool.ordered(pool.answers(goal))
    found = relevant(answering)
    if not found:
        return []
    by_place = {(s.file, s.order): s for s in everything}
    answers = {one.place: one.score for one in answering}
    asked = frozenset(tokens(goal))
    enough = max(1, len(without_repeats(answering[:MAX_RELEVANT])) // MIN_SENTENCES)
    planned: list[Theme] = []
    names: list[str] = []
    for group in _groups(found, asked, min(sections, enough)):
        keywords = _keywords(pool, group, found, asked)
        name = _name(group, keywords, names) or goal.strip().rstrip("?？!！.。")[:200]
        names.append(name)
        candidates = _candidates(pool, answers, keywords, {one.place for one in group})
        planned.append(
            Theme(
                index=len(planned),
                question=labels.question(name, goal),
                keywords=sorted(keywords, key=lambda token: (-keywords[token], token))[:MAX_KEYWORDS],
                candidates=_with_context(candidates, by_place),
            )
        )
    return planned


def _groups(found: Sequence[Scored], asked: frozenset[str], size: int) -> list[list[Scored]]:
    """The relevant sentences by theme, the weightiest theme first; what one author put together stays together."""
    units = _units(found)
    # The goal's own words are everywhere, so they cannot tell one theme from another.
    texts = [
        [
            token
            for token in pairs_only(
                [*(token for one in unit for token in one.tokens), *tokens(unit[0].sentence.heading) * 2]
            )
            if token not in asked
        ]
        for unit in units
    ]
    grouped = themes.group(themes.vectors(texts), [_weight(unit) for unit in units], size)
    result = [sorted((one for i in indices for one in units[i]), key=best_first) for indices in grouped]
    result = result or [list(found)]
    ordered = sorted(result, key=lambda group: (-_weight(group), best_first(group[0])))
    return [group for group in ordered if _weight(group) >= THEME_SHARE * _weight(ordered[0])]


def _units(found: Sequence[Scored]) -> list[list[Scored]]:
    """Sentences under one heading, or of one paragraph where there are no headings or too much under one."""
    under: dict[tuple[str, int], list[Scored]] = defaultdict(list)
    for one in sorted(found, key=lambda one: one.place):
        under[one.sentence.file, one.sentence.section].append(one)
    units: list[list[Scored]] = []
    for (_, section), members in under.items():
        if section and len(members) <= MAX_UNIT:
            units.append(members)
            continue
        blocks: dict[int, list[Scored]] = defaultdict(list)
        for one in members:
            blocks[one.sentence.block].append(one)
        units.extend(blocks.values())
    return units


def _weight(group: Sequence[Scored]) -> float:
    """What the best few sentences of a group are worth; a section has no room for more."""
    best = sorted((one.score for one in group), reverse=True)
    return round(sum(best[: MIN_SENTENCES + 1]), DECIMALS)


def _keywords(pool: Pool, group: Sequence[Scored], found: Sequence[Scored], asked: frozenset[str]) -> dict[str, float]:
    """The tokens that belong to this group more than to the rest, with how much they do, 0 to 1."""
    inside = _mass(group)
    overall = _mass(found)
    spread = Counter(token for one in group for token in set(one.tokens))
    worth = {
        token: mass * mass / overall[token] * math.log1p(spread[token]) * pool.rarity(token)
        for token, mass in inside.items()
        if token not in asked and not token.isdigit() and (spread[token] > 1 or len(group) <= MIN_SENTENCES)
    }
    best = sorted(worth, key=lambda token: (-round(worth[token], DECIMALS), token))[: 2 * MAX_KEYWORDS]
    return {token: round(worth[token] / worth[best[0]], DECIMALS) for token in best}


def _mass(group: Sequence[Scored]) -> dict[str, float]:
    mass: dict[str, float] = defaultdict(float)
    for one in group:
        for token in sorted(set(pairs_only(one.tokens))):
            mass[token] += one.score
    return mass


def _name(group: Sequence[Scored], keywords: Mapping[str, float], taken: Sequence[str]) -> str:
    total = sum(one.score for one in group)
    shares: dict[str, float] = defaultdict(float)
    for one in group:
        shares[one.sentence.heading] += one.score / total
    found = labels.phrases([one.sentence.text for one in group], [one.score for one in group], keywords)
    return labels.label(found, shares, taken)


def _candidates(
    pool: Pool,
    answers: Mapping[tuple[str, int], float],
    keywords: Mapping[str, float],
    members: set[tuple[str, int]],
) -> list[Scored]:
    """Passages for one section, best first: they answer the goal and speak of the theme.

    Another theme may find the same ones; keeping sections apart is the reviewer's task, which sees them all.
    """
    speaks = pool.scores(keywords)
    loudest = max(speaks) or 1.0
    scores = [
        answer * (BARE_WEIGHT + THEME_WEIGHT * spoken / loudest + (MEMBER_BONUS if place in members else 0.0))
        if (answer := answers.get(place := (sentence.file, sentence.order), 0.0))
        else 0.0
        for sentence, spoken in zip(pool.sentences, speaks, strict=True)
    ]
    ranked = pool.ordered(scores)
    top = ranked[0].score
    close = [
        one
        for position, one in enumerate(ranked[: 4 * MAX_CANDIDATES])
        if position < MIN_CANDIDATES or one.score >= CANDIDATE_SHARE * top
    ]
    kept = without_repeats(close)[: MAX_CANDIDATES - ROOM_FOR_CONTEXT]
    return [Scored(one.sentence, one.tokens, one.score / top) for one in kept]


def _with_context(candidates: Sequence[Scored], by_place: Mapping[tuple[str, int], Sentence]) -> list[Passage]:
    """The candidates, and behind them the sentences that leaning ones need before them."""
    passages = {one.place: _passage(one.sentence, one.score) for one in candidates}
    for one in candidates:
        place = (one.sentence.file, one.sentence.order - 1)
        before = by_place.get(place)
        if one.sentence.leans and before and before.quotable and len(passages) < MAX_CANDIDATES:
            passages.setdefault(place, _passage(before, 0.5 * one.score))
    return list(passages.values())


def _passage(sentence: Sentence, score: float) -> Passage:
    return Passage(
        file=sentence.file,
        line=sentence.line,
        text=sentence.text,
        score=round(score, 6),
        order=sentence.order,
        leans=sentence.leans,
        heading=sentence.heading[:200],
    )
