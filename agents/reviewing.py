"""What the reviewer thinks: whether sections hold what they promise, and when all of them are settled.

Pure. A brief is reviewed in rounds: once every section that is due has been drafted, all are checked together in
the order of the brief. The verdict depends on the drafts alone, never on the order in which they came, so any
replica that sees the last draft of a round reaches it, also when it has to do so again after a crash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agents.evidence import stands_at
from agents.sentences import leans
from agents.words import is_unspaced, overlap, pairs_only, tokens
from schemas.brief import MIN_SENTENCES, Problem, Quote, Reason, Theme

# Two sentences of different sections with this share of their words in common are one too many.
REDUNDANT = 0.6
GRAVITY = (Reason.MISSING_EVIDENCE, Reason.OFF_TOPIC, Reason.REDUNDANT, Reason.TOO_SHORT)
SHOWN_CHARS = 80
SHOWN_FILE_CHARS = 200

Lines = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Draft:
    """A section as the reviewer received it; `exhausted` is the writer's word that there is no more."""

    sentences: tuple[Quote, ...]
    exhausted: bool


@dataclass(frozen=True, slots=True)
class Revision:
    """A section that goes back to the writer for round `round`."""

    index: int
    round: int
    problems: tuple[Problem, ...]
    sentences: tuple[Quote, ...]
    avoid: tuple[Quote, ...]


@dataclass(frozen=True, slots=True)
class Accepted:
    """A section of the finished brief."""

    sentences: tuple[Quote, ...]
    revisions: int
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a brief stands: waiting for drafts, or revisions to send out, or finished."""

    round: int
    waiting_for: frozenset[int]
    revisions: tuple[Revision, ...]
    accepted: tuple[Accepted, ...]

    @property
    def is_finished(self) -> bool:
        """Whether every section is settled."""
        return bool(self.accepted)


def standing(
    goal: str, themes: Sequence[Theme], rounds: int, drafts: Mapping[tuple[int, int], Draft], lines: Lines
) -> Standing:
    """Replays the review from the drafts by (round, index): what was due, judged, sent back, accepted.

    Drafts that were not due are ignored. `revisions` are those of the last complete round; sending them again is
    harmless as long as their message ids follow from round and index.
    """
    current: dict[int, Draft] = {}
    last_round: dict[int, int] = {}
    settled: set[int] = set()
    due = frozenset(range(len(themes)))
    revisions: tuple[Revision, ...] = ()
    for number in range(rounds + 1):
        missing = frozenset(index for index in due if (number, index) not in drafts)
        if missing:
            return Standing(number, missing, revisions, ())
        for index in due:
            current[index], last_round[index] = drafts[number, index], number
        found = _review_round(goal, themes, current, due, settled, lines)
        settled |= {index for index in due if not found[index]}
        due = frozenset(index for index in due if found[index])
        revisions = tuple(_revision(themes[index], number + 1, current, found[index]) for index in sorted(due))
        if not due or number == rounds:
            accepted = tuple(
                _accept(current[index], last_round[index], found.get(index, [])) for index in range(len(themes))
            )
            return Standing(number, frozenset(), (), accepted)
    raise AssertionError("unreachable: the last round is always decided")


def check(goal: str, theme: Theme, draft: Draft, others: Mapping[int, Draft], lines: Lines) -> list[Problem]:
    """Everything that is wrong with one section, the gravest first; `others` are the sections it must not repeat.

    The citations are checked against `lines`, the sources themselves, whatever the message says about them.
    """
    found: list[Problem] = []
    wanted = frozenset(pairs_only(tokens(goal))) | frozenset(theme.keywords)
    on_topic = [_is_on_topic(quote.text, wanted) for quote in draft.sentences]
    for position, quote in enumerate(draft.sentences):
        problem = (
            _missing(quote, lines)
            or _off_topic(draft.sentences, position, on_topic, theme)
            or _redundant(quote, theme.index, draft.sentences[:position], others)
        )
        if problem is not None:
            found.append(problem)
    short = len(draft.sentences) < MIN_SENTENCES
    if short and not draft.exhausted:
        detail = f"{len(draft.sentences)} of at least {MIN_SENTENCES} sentences"
        found.append(Problem(reason=Reason.TOO_SHORT, detail=detail))
    return sorted(found, key=lambda problem: GRAVITY.index(problem.reason))


def _review_round(
    goal: str,
    themes: Sequence[Theme],
    current: Mapping[int, Draft],
    due: Iterable[int],
    settled: Iterable[int],
    lines: Lines,
) -> dict[int, list[Problem]]:
    """A section must not repeat a settled one, nor one before it; so of two that repeat each other one stays."""
    found = {}
    keep = set(settled)
    for index in sorted(due):
        others = {other: current[other] for other in sorted(keep) if other != index}
        found[index] = check(goal, themes[index], current[index], others, lines)
        keep.add(index)
    return found


def _missing(quote: Quote, lines: Lines) -> Problem | None:
    if quote.file not in lines:
        detail = f"{_place(quote)} is not in the sources"
    elif not stands_at(lines[quote.file], quote.line, quote.text):
        detail = f"not verbatim at {_place(quote)}"
    else:
        return None
    return Problem(reason=Reason.MISSING_EVIDENCE, quote=quote, detail=detail)


def _is_on_topic(text: str, wanted: frozenset[str]) -> bool:
    found = tokens(text)
    return bool(wanted & frozenset(found)) or (not wanted and bool(found))


def _off_topic(sentences: Sequence[Quote], position: int, on_topic: Sequence[bool], theme: Theme) -> Problem | None:
    """Off the question, unless it carries, or is carried by, a neighbour that is on it."""
    quote = sentences[position]
    if on_topic[position]:
        return None
    if position and leans(quote.text) and on_topic[position - 1]:
        return None
    following = sentences[position + 1] if position + 1 < len(sentences) else None
    if following and following.file == quote.file and leans(following.text) and on_topic[position + 1]:
        return None
    detail = f"shares no word with the question or the theme: {_shown(quote)}"
    return Problem(reason=Reason.OFF_TOPIC, quote=quote, detail=detail)


def _redundant(quote: Quote, index: int, before: Sequence[Quote], others: Mapping[int, Draft]) -> Problem | None:
    for other, draft in [(index, before), *((other, draft.sentences) for other, draft in others.items())]:
        if any(_says_the_same(quote, one) for one in draft):
            detail = f"section {other + 1} says the same: {_shown(quote)}"
            return Problem(reason=Reason.REDUNDANT, quote=quote, other_index=other, detail=detail)
    return None


def _says_the_same(left: Quote, right: Quote) -> bool:
    if left.text == right.text:
        return True
    return overlap(frozenset(tokens(left.text)), frozenset(tokens(right.text))) >= REDUNDANT


def _revision(theme: Theme, number: int, current: Mapping[int, Draft], problems: Sequence[Problem]) -> Revision:
    """What the writer is told: what to drop, and which candidates the other sections have taken."""
    refused = [problem.quote for problem in problems if problem.quote is not None]
    taken = [q for index in sorted(current) if index != theme.index for q in current[index].sentences]
    avoid = {(quote.file, quote.line, quote.text): quote for quote in refused}
    for candidate in theme.candidates:
        if any(_says_the_same(candidate, quote) for quote in taken):
            quote = Quote(file=candidate.file, line=candidate.line, text=candidate.text)
            avoid[quote.file, quote.line, quote.text] = quote
    draft = current[theme.index]
    # A sentence that an earlier section repeats stays here: it is the other that must go.
    own = {(quote.file, quote.line, quote.text) for quote in draft.sentences}
    blamed = {(quote.file, quote.line, quote.text) for quote in refused}
    kept = {key: quote for key, quote in avoid.items() if key in blamed or key not in own}
    return Revision(theme.index, number, tuple(problems), draft.sentences, tuple(kept.values()))


def _accept(draft: Draft, revisions: int, problems: Sequence[Problem]) -> Accepted:
    """What stays of a section when the rounds are over: nothing without evidence, the rest with remarks."""
    remarks: list[str] = []
    sentences = list(draft.sentences)
    for problem in problems:
        if problem.quote is None or problem.quote not in sentences:
            continue
        if problem.reason is Reason.MISSING_EVIDENCE:
            sentences.remove(problem.quote)
            remarks.append(f"One sentence was left out: {problem.detail}.")
        elif len(sentences) > MIN_SENTENCES:
            sentences.remove(problem.quote)
        else:
            remarks.append(f"{problem.reason.replace('_', ' ').capitalize()}: {problem.detail}.")
    if len(sentences) < MIN_SENTENCES:
        remarks.append("The sources say little about this." if sentences else "The sources say nothing more.")
    return Accepted(tuple(sentences), revisions, tuple(remarks))


def _shown(quote: Quote) -> str:
    text = quote.text if len(quote.text) <= SHOWN_CHARS else f"{quote.text[: SHOWN_CHARS - 1]}…"
    marks = "「{}」" if is_unspaced(text) else '"{}"'
    return f"{marks.format(text)} at {_place(quote)}"


def _place(quote: Quote) -> str:
    return f"{quote.file[-SHOWN_FILE_CHARS:]}:{quote.line}"
