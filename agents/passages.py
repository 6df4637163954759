# ruff: noqa: RUF001 - Chinese punctuation is meant
"""Finds the sentences of the sources that answer a goal, best first.

Three things count: the goal's words in the sentence itself (and how many different ones), the same words in the
paragraph and heading around it, and words that the best paragraphs have in common (relevance feedback): an
answer to `lost messages` may well say `redelivered` and neither of the two.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy

from agents.ranking import Ranking
from agents.sentences import Sentence
from agents.words import overlap, pairs_only, tokens

DECIMALS = 9
MAX_RELEVANT = 400
# A sentence that answers this much worse than the best one is not about the goal.
RELEVANT_SHARE = 0.25
# Two sentences with this share of their words in common say the same.
SAME = 0.75

AROUND_WEIGHT = 0.4
SINGLE_CHARACTER_WEIGHT = 0.3
COVERAGE_WEIGHT = 0.6
FEEDBACK_PARAGRAPHS = 8
FEEDBACK_TOKENS = 16
FEEDBACK_WEIGHT = 0.5
FRAGMENT_FACTOR = 0.7
LEANING_FACTOR = 0.8
SHORT_FACTOR = 0.8
SHORT_TOKENS = 4
QUESTION_FACTOR = 0.5
CODE_FACTOR = 0.6
CODE_SHARE = 0.4

_CODE_SPAN = re.compile(r"`[^`]+`")
_CODE = re.compile(r"`[^`]+`|\S*[_/=<>{}]\S*|\S+\.\S+")


@dataclass(frozen=True, slots=True)
class Scored:
    """A sentence, its tokens, and how well it answers; scores compare within one list only."""

    sentence: Sentence
    tokens: tuple[str, ...]
    score: float

    @property
    def place(self) -> tuple[str, int]:
        """Unique, and in the order of the documents."""
        return (self.sentence.file, self.sentence.order)


class Pool:
    """All sentences that may be quoted, with two indexes: the sentences, and the paragraphs around them."""

    def __init__(self, everything: Sequence[Sentence]) -> None:
        self.sentences = [s for s in everything if s.quotable]
        self.tokens = [tuple(tokens(s.text)) for s in self.sentences]
        around: dict[tuple[str, int], list[str]] = {}
        for sentence, found in zip(self.sentences, self.tokens, strict=True):
            key = (sentence.file, sentence.block)
            around.setdefault(key, tokens(sentence.heading)).extend(found)
        numbers = {key: number for number, key in enumerate(around)}
        self._paragraphs = list(around.values())
        self._paragraph = numpy.array([numbers[s.file, s.block] for s in self.sentences], dtype=int)
        self._standing = numpy.array([_standing(sentence) for sentence in self.sentences])
        # A name in a code span is a mention; only the prose around it says something about it.
        self._sentence_ranking = Ranking([tokens(_CODE_SPAN.sub(" ", s.text)) for s in self.sentences])
        self._paragraph_ranking = Ranking(self._paragraphs)
        self._spread = Counter(token for found in self.tokens for token in set(found))

    def rarity(self, token: str) -> float:
        """How much a token tells: the more, the fewer sentences have it; never 0."""
        return math.log(1 + len(self.sentences) / (1 + self._spread[token]))

    def scores(self, query: Mapping[str, float]) -> list[float]:
        """How well each sentence answers a query of tokens with weights, itself and by what is around it."""
        own = self._sentence_ranking.scores(query)
        around = self._paragraph_ranking.scores(query)[self._paragraph]
        total = (own + AROUND_WEIGHT * around) * self._standing
        return [float(score) for score in numpy.round(total, DECIMALS)]

    def answers(self, goal: str) -> list[float]:
        """How well each sentence answers the goal, 1 at most; 0 for one that has nothing to do with it."""
        query = _query(goal)
        direct = _to_one([s * self._coverage(i, query) if s > 0 else 0.0 for i, s in enumerate(self.scores(query))])
        further = _to_one(self.scores(self._feedback(direct, query)))
        return _to_one([a + FEEDBACK_WEIGHT * b if a > 0 else 0.0 for a, b in zip(direct, further, strict=True)])

    def ordered(self, scores: Sequence[float]) -> list[Scored]:
        """The sentences with a score, best first; equal ones by file and place in it."""
        found = [
            Scored(sentence, own, score)
            for sentence, own, score in zip(self.sentences, self.tokens, scores, strict=True)
            if score > 0
        ]
        return sorted(found, key=best_first)

    def _coverage(self, index: int, query: Mapping[str, float]) -> float:
        own = set(self.tokens[index])
        around = set(self._paragraphs[self._paragraph[index]])
        worth = {token: weight * self.rarity(token) for token, weight in query.items() if token in self._spread}
        covered = sum(w if t in own else w / 2 if t in around else 0.0 for t, w in worth.items())
        return 1 - COVERAGE_WEIGHT + COVERAGE_WEIGHT * covered / (sum(worth.values()) or 1.0)

    def _feedback(self, direct: Sequence[float], query: Mapping[str, float]) -> dict[str, float]:
        best: dict[int, float] = {}
        for one in sorted(range(len(direct)), key=lambda i: (-direct[i], i)):
            if direct[one] <= 0 or len(best) == FEEDBACK_PARAGRAPHS:
                break
            best.setdefault(self._paragraph[one], direct[one])
        mass: dict[str, float] = defaultdict(float)
        spread = Counter(token for number in best for token in set(self._paragraphs[number]))
        for number, score in best.items():
            found = self._paragraphs[number]
            for token, times in Counter(pairs_only(found)).items():
                if token not in query and spread[token] > 1:
                    mass[token] += score * score * times / len(found) * self.rarity(token) * (spread[token] - 1)
        kept = sorted(mass, key=lambda token: (-round(mass[token], DECIMALS), token))[:FEEDBACK_TOKENS]
        return {token: mass[token] / mass[kept[0]] for token in kept}


def relevant(answers: Sequence[Scored]) -> list[Scored]:
    """Of all that answer, best first, those that answer well enough to say what the goal is about."""
    return [one for one in answers[:MAX_RELEVANT] if one.score >= RELEVANT_SHARE * answers[0].score]


def without_repeats(found: Sequence[Scored]) -> list[Scored]:
    """The same list without sentences that say what an earlier one says."""
    kept: list[Scored] = []
    sets: list[frozenset[str]] = []
    for one in found:
        own = frozenset(one.tokens)
        if all(overlap(own, other) < SAME for other in sets):
            kept.append(one)
            sets.append(own)
    return kept


def best_first(one: Scored) -> tuple[float, str, int]:
    """Sort key: equal scores by file and place in it, so that an order never depends on chance."""
    return (-one.score, *one.place)


def _query(goal: str) -> dict[str, float]:
    found = dict.fromkeys(tokens(goal))
    pairs = set(pairs_only(found))
    return {token: 1.0 if token in pairs or len(pairs) == 0 else SINGLE_CHARACTER_WEIGHT for token in found}


def _standing(sentence: Sentence) -> float:
    """How well a sentence stands on its own in a brief, whatever it says."""
    standing = 1.0 if sentence.complete else FRAGMENT_FACTOR
    if sentence.leans:
        standing *= LEANING_FACTOR
    if len(tokens(sentence.text)) <= SHORT_TOKENS:
        standing *= SHORT_FACTOR
    if sentence.text.rstrip("\"'”’」』)）*_").endswith(("?", "？")):
        standing *= QUESTION_FACTOR
    code = sum(len(found) for found in _CODE.findall(sentence.text))
    return standing * CODE_FACTOR if code > CODE_SHARE * len(sentence.text) else standing


def _to_one(scores: Sequence[float]) -> list[float]:
    top = max(scores, default=0.0)
    return [round(score / top, DECIMALS) for score in scores] if top > 0 else list(scores)
