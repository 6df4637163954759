# ruff: noqa: RUF001 - Chinese punctuation is meant
"""Tokens and ranking (WF-5): the same text gives the same tokens and the same order, everywhere."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.ranking import Ranking
from agents.words import is_unspaced, overlap, pairs_only, stem, tokens


@pytest.mark.parametrize(
    "family",
    [
        ("retry", "retries", "retried", "retrying"),
        ("message", "messages", "messaging"),
        ("delivery", "deliver", "delivers", "delivered", "delivering", "deliveries"),
        ("lose", "lost", "losing", "loses", "loss"),
        ("duplicate", "duplicates", "duplicated", "duplication"),
        ("stop", "stops", "stopped", "stopping"),
        ("process", "processes"),
        ("index", "indexes", "indices"),
        ("connect", "connection", "connections", "connected"),
    ],
)
def test_the_forms_of_a_word_are_one_token(family: tuple[str, ...]) -> None:
    assert len({stem(word) for word in family}) == 1


def test_words_that_carry_nothing_are_left_out() -> None:
    assert tokens("How does it make sure that there is no such thing?") == []
    assert tokens("它是什么？如何可以的") == []


def test_english_and_chinese_in_one_text() -> None:
    assert tokens("NATS 的消息流 (v2)") == ["nat", "消", "消息", "息", "息流", "流", "v2"]
    assert pairs_only(["消", "消息", "a1", "7"]) == ["消息", "a1", "7"]
    assert tokens("Ｆｕｌｌ ｗｉｄｔｈ") == ["full", "width"]


def test_addresses_and_possessives_are_no_words() -> None:
    assert tokens("[the bus's page](docs/other.md) https://a.example/path") == ["bus", "page"]


def test_the_script_of_a_text_is_known() -> None:
    assert is_unspaced("消息总线 NATS 如何")
    assert not is_unspaced("How does 总线 work in practice?")


@given(st.text(max_size=200))
def test_any_text_has_tokens_without_white_space(text: str) -> None:
    assert all(token and token == token.strip() for token in tokens(text))


def test_overlap_is_the_share_of_common_tokens() -> None:
    assert overlap(frozenset("abc"), frozenset("bcd")) == 0.5
    assert overlap(frozenset(), frozenset()) == 0.0


TEXTS = ["", "The bus retries a message", "Messages are lost", "Nothing at all here", "消息总线", "Lost messages"]


def test_texts_with_the_words_of_the_query_score_and_others_do_not() -> None:
    ranking = Ranking([tokens(text) for text in TEXTS])
    scores = ranking.scores(dict.fromkeys(tokens("lost messages"), 1.0))
    assert scores[2] == scores[5] == max(scores)
    assert scores[1] > 0
    assert scores[0] == scores[3] == scores[4] == 0


def test_weights_count() -> None:
    ranking = Ranking([["a1"], ["b1"]])
    scores = ranking.scores({"a1": 1.0, "b1": 0.5, "unknown": 9.0})
    assert scores[0] == pytest.approx(2 * scores[1])


@pytest.mark.parametrize("texts", [[], [[]], [[], []]])
def test_an_index_of_nothing_answers_nothing(texts: list[list[str]]) -> None:
    assert list(Ranking(texts).scores({"a1": 1.0})) == [0.0] * len(texts)


def test_ranking_is_the_same_in_processes_with_other_hash_seeds_and_prints_nothing() -> None:
    program = (
        "from agents.ranking import Ranking\nfrom agents.words import tokens\n"
        f"texts = {TEXTS!r} * 20\n"
        "print(Ranking([tokens(t) for t in texts]).scores(dict.fromkeys(tokens('lost messages 消息'), 1.0)).tolist())"
    )
    outputs = set()
    for seed in ("0", "1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
        )
        outputs.add(done.stdout)
        assert done.stderr == ""
    assert len(outputs) == 1
