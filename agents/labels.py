# ruff: noqa: RUF001 - Chinese punctuation is meant
"""Names a theme in the words of its sources, and asks the question that its section answers."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agents.words import is_unspaced, pairs_only, stem, surface, tokens

MAX_PHRASES = 3
MAX_WORDS = 3
MAX_RUN = 4
NOUN_SHARE = 0.3
MAX_LABEL_CHARS = 120
MAX_HEADING_CHARS = 48
MAX_ACRONYM_CHARS = 6

_BREAK = re.compile(r"`[^`]*`|[^\w\s'’-]+|\s-\s")
_NUMBERING = re.compile(
    r"^(?:\d+(?:\.\d+)*[.)]?|第[\d一二三四五六七八九十百]+[章节回部篇]|[一二三四五六七八九十]+、)\s*"
)
_DETERMINERS = frozenset(
    re.findall(r"\w+", "the a an each every any this its their our your of one no per in by from with for")
)
_GENERIC = frozenset(
    stem(word) or word
    for word in re.findall(
        r"\w+",
        "introduction overview summary note background conclusion general miscellaneous usage contents readme about "
        "details basics example three four five six seven eight nine ten faq todo appendix description motivation "
        "概述 简介 介绍 说明 总结 背景",
    )
)


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words as they stand in the sources, and the tokens that they are made of."""

    text: str
    tokens: frozenset[str]
    weight: float
    is_noun: bool


def question(label: str, goal: str) -> str:
    """The question that a section about `label` answers, in the language of the goal."""
    if is_unspaced(goal):
        return f"关于{label}，资料说了什么？"
    return f"What do the sources say about {label}?"


def label(phrases: Sequence[Phrase], headings: Mapping[str, float], taken: Sequence[str]) -> str:
    """A heading that most of the theme stands under, else its weightiest phrases.

    `headings` gives the share of the theme under each heading. `taken` are the labels of other themes: what they
    are called by says nothing here, unless there is nothing else.
    """
    for heading, share in sorted(headings.items(), key=lambda item: (-item[1], item[0])):
        name = _trimmed(heading)
        if share >= 0.5 and name and f"“{name}”" not in taken:
            return f"“{name}”"
    used = frozenset(token for name in taken for token in tokens(name))
    fresh = [phrase for phrase in phrases if not phrase.tokens & used] or phrases
    things = [phrase for phrase in fresh if phrase.is_noun] or fresh
    chosen: list[Phrase] = []
    for phrase in sorted(things, key=lambda phrase: (-phrase.weight, phrase.text)):
        if len(chosen) < MAX_PHRASES and not any(phrase.tokens & other.tokens for other in chosen):
            chosen.append(phrase)
    names = [phrase.text for phrase in chosen]
    while len(names) > 1 and len(_listed(names)) > MAX_LABEL_CHARS:
        names.pop()
    return _listed(names)[:MAX_LABEL_CHARS]


def phrases(texts: Sequence[str], weights: Sequence[float], ranks: Mapping[str, float]) -> list[Phrase]:
    """Candidate names: runs of up to three words (or four unspaced characters) made of ranked tokens only.

    `ranks` says how much each token belongs to the theme; a phrase of several words must be found twice.
    Without a dictionary, a word counts as a noun when it often stands behind a determiner.
    """
    nouns = _nouns(texts)
    written: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    support: dict[tuple[str, ...], float] = defaultdict(float)
    for text, weight in zip(texts, weights, strict=True):
        for form in sorted({run for part in _BREAK.split(text) for run in _runs(part)}):
            key = tuple(tokens(form))
            if all(token in ranks for token in pairs_only(key)) and not _GENERIC.issuperset(key):
                written[key][form] += 1
                support[key] += weight
    found = []
    for key, forms in written.items():
        known = [ranks[token] for token in key if token in ranks]
        if not known or (sum(forms.values()) < 2 and len(known) > 1):
            continue
        worth = sum(known) / len(known) * (1 + 0.35 * (min(len(known), MAX_WORDS) - 1))
        form = min(forms, key=lambda form: (-forms[form], form.casefold() != form, form))
        is_noun = is_unspaced(form) or form.split(" ")[-1].casefold() in nouns
        found.append(Phrase(_lowered(form, forms), frozenset(key), round(worth * support[key], 9), is_noun))
    return found


def _nouns(texts: Iterable[str]) -> frozenset[str]:
    times: Counter[str] = Counter()
    determined: Counter[str] = Counter()
    for text in texts:
        words = [word.casefold() for word in surface(text)]
        times.update(words)
        for position, word in enumerate(words):
            if word in _DETERMINERS:
                for following in words[position + 1 : position + 3]:
                    if not stem(following):
                        break
                    determined[following] += 1
    return frozenset(
        word
        for word, count in determined.items()
        if count >= NOUN_SHARE * times[word] and not word.endswith(("ed", "ly"))
    )


def _runs(text: str) -> Iterable[str]:
    words = list(surface(text))
    for start, word in enumerate(words):
        if is_unspaced(word):
            for size in range(2, MAX_RUN + 1):
                yield from (word[i : i + size] for i in range(len(word) - size + 1))
            continue
        for end in range(start + 1, min(start + MAX_WORDS, len(words)) + 1):
            run = words[start:end]
            if is_unspaced(run[-1]) or not stem(run[-1].casefold()):
                break
            if not run[-1].isdigit():
                yield " ".join(run)


def _lowered(form: str, forms: Counter[str]) -> str:
    """`Dead letters` at the start of a sentence is `dead letters`; `NATS` and `JetStream` stay."""
    first = form.split(" ")[0]
    plain = first[:1] + first[1:].lower()
    if first == plain and first[:1].isupper() and (form[:1].lower() + form[1:] in forms or " " in form):
        return form[:1].lower() + form[1:]
    return form


def _trimmed(heading: str) -> str:
    """A heading fit to stand inside a question, or nothing when it says too little or too much."""
    heading = re.sub(r"^(?:The|An?) ", "", heading)
    name = re.split(r"\s*[(（:：—]|\s[-–]\s", _NUMBERING.sub("", heading))[0].strip(" .。?？!！")
    found = tokens(name)
    if len(name) > MAX_HEADING_CHARS:
        name = re.split("[,，;；]", name)[0]
    if not found or len(name) > MAX_HEADING_CHARS or all(token in _GENERIC for token in found) or name in _GENERIC:
        return ""
    return name.capitalize() if name.isupper() and len(name) > MAX_ACRONYM_CHARS else name


def _listed(names: Sequence[str]) -> str:
    if names and is_unspaced("".join(names)):
        return "、".join(names)
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
