"""The writer's choice of sentences (WF-5): from the candidates alone, in the order of their authors."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from agents.writing import draft, revise
from schemas.brief import MAX_SENTENCES, MIN_SENTENCES, Passage, Quote, Reason, Theme

ANIMALS = ("otter", "heron", "badger", "falcon", "lizard", "salmon", "beetle", "marten", "plover", "weasel")


def passage(number: int, score: float, *, file: str = "a.md", leans: bool = False, text: str = "") -> Passage:
    return Passage(
        file=file,
        line=number + 1,
        text=text or f"The {ANIMALS[number]} number{number} lives beside river{number} and hunts at hour{number}.",
        score=score,
        order=number,
        leans=leans,
    )


def theme(*passages: Passage) -> Theme:
    return Theme(index=0, question="Who lives here?", keywords=[], candidates=list(passages))


def orders(sentences: Sequence[Quote]) -> list[int]:
    return [quote.line - 1 for quote in sentences]


def test_the_best_are_taken_and_put_in_the_order_of_the_file() -> None:
    section = draft(theme(*(passage(n, 1 - 0.05 * ((n * 7) % 10)) for n in range(10))))
    assert len(section.sentences) == 5
    assert orders(section.sentences) == sorted(orders(section.sentences))
    assert {0, 3} <= set(orders(section.sentences))
    assert not section.exhausted


def test_the_file_with_the_best_sentence_comes_first() -> None:
    section = draft(theme(passage(0, 1.0, file="z.md"), passage(1, 0.9, file="a.md"), passage(2, 0.8, file="z.md")))
    assert [quote.file for quote in section.sentences] == ["z.md", "z.md", "a.md"]


def test_two_sentences_that_say_the_same_are_not_both_taken() -> None:
    same = "The otter of the old mill sleeps in a hollow willow all winter."
    section = draft(theme(passage(0, 1.0, text=same), passage(1, 0.9, text=same), passage(2, 0.8), passage(3, 0.7)))
    assert orders(section.sentences) == [0, 2, 3]


def test_a_first_draft_takes_only_what_answers_well_and_a_revision_what_there_is() -> None:
    thin = theme(passage(0, 1.0), passage(1, 0.2), passage(2, 0.1))
    first = draft(thin)
    assert (orders(first.sentences), first.exhausted) == ([0], False)
    second = revise(thin, first.sentences, [], [Reason.TOO_SHORT])
    assert (orders(second.sentences), second.exhausted) == ([0, 1, 2], False)


def test_when_nothing_is_left_the_writer_says_so() -> None:
    section = draft(theme(passage(0, 1.0), passage(1, 0.9)))
    assert (len(section.sentences), section.exhausted) == (2, True)


def test_a_leaning_sentence_comes_with_the_one_before_it() -> None:
    section = draft(theme(passage(4, 1.0, leans=True), passage(7, 0.9), passage(3, 0.1)))
    assert orders(section.sentences)[:2] == [3, 4]


def test_a_leaning_sentence_without_support_gives_way_to_others() -> None:
    section = draft(theme(passage(4, 0.6, leans=True), passage(1, 1.0), passage(7, 0.9), passage(9, 0.8)))
    assert orders(section.sentences) == [1, 7, 9]


def test_a_revision_keeps_what_was_good_and_avoids_what_was_refused() -> None:
    many = theme(*(passage(n, 1 - 0.01 * n) for n in range(10)))
    first = draft(many)
    refused = first.sentences[0]
    second = revise(many, first.sentences, [refused], [Reason.REDUNDANT])
    assert refused not in second.sentences
    assert set(first.sentences) - {refused} <= set(second.sentences)
    assert len(second.sentences) == 5


def test_sentences_that_are_no_candidates_are_never_taken_over() -> None:
    invented = Quote(file="a.md", line=1, text="The otter sings at night in the rain.")
    section = revise(theme(passage(0, 1.0), passage(1, 0.9)), [invented], [], [Reason.MISSING_EVIDENCE])
    assert invented not in section.sentences


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.floats(0, 1), st.booleans()), min_size=1, max_size=10, unique_by=lambda t: t[0]
    ),
    st.sets(st.integers(0, 9)),
    st.randoms(use_true_random=False),
)
def test_a_section_is_bounded_made_of_candidates_and_does_not_depend_on_their_order(
    items: list[tuple[int, float, bool]], avoided: set[int], chance: object
) -> None:
    passages = [passage(number, score, leans=leans) for number, score, leans in items]
    avoid = [Quote(file=p.file, line=p.line, text=p.text) for p in passages if p.order in avoided]
    section = revise(theme(*passages), [], avoid, [Reason.TOO_SHORT])
    assert len(section.sentences) <= MAX_SENTENCES
    assert {(q.line, q.text) for q in section.sentences} <= {(p.line, p.text) for p in passages}
    assert not set(section.sentences) & set(avoid)
    assert len(section.sentences) >= min(MIN_SENTENCES, len(passages) - len(avoid))
    shuffle = getattr(chance, "shuffle")  # noqa: B009 - hypothesis hands a random.Random
    shuffle(passages)
    assert revise(theme(*passages), [], avoid, [Reason.TOO_SHORT]) == section
