"""What the writer thinks: which candidate passages make a section, and in which order they read well.

Pure, and from the message alone: the same request gives the same section on every replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agents.words import overlap, tokens
from schemas.brief import MAX_SENTENCES, MIN_SENTENCES, Passage, Quote, Reason, Theme

TARGET_SENTENCES = 5
# The first draft takes only what answers well; a revision that is told `too_short` takes what there is.
WORTHY = 0.35
WORTHY_START = 0.3
SAME = 0.6
SAMENESS_WEIGHT = 0.7
UNSUPPORTED_FACTOR = 0.5


@dataclass(frozen=True, slots=True)
class Section:
    """A section as written. `exhausted` when the candidates cannot give more than these sentences."""

    sentences: tuple[Quote, ...]
    exhausted: bool


def draft(theme: Theme) -> Section:
    """The first version of a section; the writer knows nothing of the other sections."""
    return _write(theme, kept=[], avoid=[], floor=WORTHY_START)


def revise(theme: Theme, sentences: Sequence[Quote], avoid: Iterable[Quote], reasons: Iterable[Reason]) -> Section:
    """The section again, without the sentences in `avoid`; what was good stays, gaps are filled."""
    avoided = list(avoid)
    refused = {_key(quote) for quote in avoided}
    known = {_key(passage): passage for passage in theme.candidates}
    kept = [known[_key(quote)] for quote in sentences if _key(quote) in known and _key(quote) not in refused]
    # A section that lost sentences is short as well, so any revision may take the less worthy ones.
    floor = 0.0 if set(reasons) else WORTHY_START
    return _write(theme, kept=kept, avoid=avoided, floor=floor)


class _Choice:
    """The sentences chosen so far, and what may still be chosen."""

    def __init__(self, theme: Theme, *, kept: Sequence[Passage], avoid: Sequence[Quote]) -> None:
        self.chosen: list[Passage] = []
        self._tokens: dict[tuple[str, int, str], frozenset[str]] = {
            _key(passage): frozenset(tokens(passage.text)) for passage in theme.candidates
        }
        barred = {_key(quote) for quote in avoid}
        barred_tokens = [frozenset(tokens(quote.text)) for quote in avoid]
        self._free = {
            (passage.file, passage.order): passage
            for passage in theme.candidates
            if _key(passage) not in barred
            and all(overlap(self._tokens[_key(passage)], other) < SAME for other in barred_tokens)
        }
        for passage in kept:
            self.take(passage)

    def take(self, passage: Passage) -> None:
        self._free.pop((passage.file, passage.order), None)
        self.chosen.append(passage)

    def next(self) -> tuple[float, list[Passage]] | None:
        """The best that is left: its worth, and the sentence with the one that it leans on, if that is needed."""
        offers = [offer for passage in self._free.values() if (offer := self._offer(passage)) is not None]
        return max(offers, key=lambda offer: (offer[0], *_reversed_place(offer[1][-1])), default=None)

    def _offer(self, passage: Passage) -> tuple[float, list[Passage]] | None:
        likeness = self._likeness(passage)
        if likeness >= SAME:
            return None
        worth = passage.score * (1 - SAMENESS_WEIGHT * likeness)
        if not passage.leans or self._is_supported(passage):
            return round(worth, 9), [passage]
        before = self._free.get((passage.file, passage.order - 1))
        fits = before is not None and len(self.chosen) + 2 <= MAX_SENTENCES
        if before is not None and fits and self._likeness(before) < SAME:
            support = [before] if not before.leans or self._is_supported(before) else []
            if support:
                return round(worth, 9), [*support, passage]
        return round(worth * UNSUPPORTED_FACTOR, 9), [passage]

    def _is_supported(self, passage: Passage) -> bool:
        return any(one.file == passage.file and one.order == passage.order - 1 for one in self.chosen)

    def _likeness(self, passage: Passage) -> float:
        own = self._tokens[_key(passage)]
        return max((overlap(own, self._tokens[_key(one)]) for one in self.chosen), default=0.0)


def _write(theme: Theme, *, kept: Sequence[Passage], avoid: Sequence[Quote], floor: float) -> Section:
    choice = _Choice(theme, kept=kept, avoid=avoid)
    exhausted = False
    while len(choice.chosen) < TARGET_SENTENCES:
        offer = choice.next()
        if offer is None:
            exhausted = True
            break
        worth, passages = offer
        if worth < (floor if len(choice.chosen) < MIN_SENTENCES else WORTHY):
            break
        for passage in passages:
            choice.take(passage)
    quotes = [Quote(file=p.file, line=p.line, text=p.text) for p in _in_reading_order(choice.chosen)]
    return Section(tuple(quotes), exhausted and len(quotes) < MIN_SENTENCES)


def _in_reading_order(chosen: Sequence[Passage]) -> list[Passage]:
    """As their authors ordered them; the file with the best sentence comes first."""
    best: dict[str, float] = {}
    for passage in chosen:
        best[passage.file] = max(best.get(passage.file, 0.0), passage.score)
    return sorted(chosen, key=lambda one: (-best[one.file], one.file, one.order))


def _key(quote: Quote) -> tuple[str, int, str]:
    # Two sentences may start on one line, so file and line alone do not name one.
    return (quote.file, quote.line, quote.text)


def _reversed_place(passage: Passage) -> tuple[int, tuple[int, ...]]:
    """Orders equal offers so that `max` takes the one that comes first by file and place."""
    return (-passage.order, tuple(-ord(char) for char in passage.file))
