# ruff: noqa: RUF001 - Chinese punctuation is meant
"""Splitting documents into sentences with their lines (WF-5), English and Chinese."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.blocks import Block, Kind, markdown_blocks, plain_blocks
from agents.evidence import stands_at
from agents.sentences import Sentence, read_sentences, sentence_spans, split_block
from agents.sources import split_lines


def split(text: str) -> list[str]:
    return [text[start:end] for start, end in sentence_spans(text)]


def at(file: str, text: str) -> list[tuple[int, str]]:
    return [(sentence.line, sentence.text) for sentence in read_sentences(file, text)]


def quotable(file: str, text: str) -> list[str]:
    return [sentence.text for sentence in read_sentences(file, text) if sentence.quotable]


@pytest.mark.parametrize(
    "sentences",
    [
        ["It costs 2.14 dollars.", "Version 1.2.3 is out!", "Is it?", "Yes."],
        ["Use e.g. Foo or i.e. Bar.", "Dr. Smith vs. Mr. Jones.", "See Fig. 3 and No. 5.", "The answer is no."],
        ["J. R. Tolkien wrote it.", "In the U.S. Army it was read.", "So did I.", "Etc."],
        ["See https://a.example/b.c?d=1.", "Then `a. B` in code.", "And [a link](x.md. 'T. X') here."],
        ['He said "Stop. Go home." and left.', 'She said "no."', "“Really?!”", "(It is so. Truly.)", "Fine."],
        ["Really?!", "Wait...", "What... is that?", "It is `nats.js`.", "`bus` is a command."],
        ["A claim.[^1]", "Another one.[2]", "**Bold.**", "*Italic too.*", "End"],
        ["他说：“你好。我很好。”", "然后走了。", "消息总线很快！", "真的吗？", "是的；", "不是。"],
        ["「引用。」", "他说。", "使用 NATS 2.14 版本。", "真的吗?", "是的……也许。", "（见第3节。）", "完"],
    ],
)
def test_sentences_end_where_a_reader_ends_them(sentences: list[str]) -> None:
    unspaced = any("\u4e00" <= char <= "\u9fff" for char in "".join(sentences))
    assert split(("" if unspaced else " ").join(sentences)) == sentences


@given(st.text(alphabet="ab Z.!?。！？；“”「」()（）`*_[]\"'’…1,:，\n ", max_size=120))
def test_splitting_loses_nothing_and_keeps_the_order(text: str) -> None:
    position = 0
    for start, end in sentence_spans(text):
        assert start >= position
        assert text[position:start].strip() == ""
        assert end > start
        assert text[start:end] == text[start:end].strip()
        position = end
    assert text[position:].strip() == ""


def test_a_very_long_line_takes_no_square_of_time() -> None:
    text = "`(“a. B " * 40_000
    assert "".join(split(text)).replace(" ", "") == text.replace(" ", "")


MARKDOWN = """---
title: Not text. Really not.
---

# Head *one* `c`

First sentence of a paragraph
that spans lines. Second one here is fine and dandy.

> Quoted text here is also a good
> sentence that spans. Single line quote sentence is fine here.

- item one has no end but many words
  and continues here
- [x] Task is done and it is very good.

1. First. Second one.

```
fence. Not read.
```

    code. Not read.

| a | b |
|---|---|
| c. D | e |

<!-- comment. Not read. -->

<div>Html. Not read.</div>

Setext heading
==============

[ref]: http://x.example

这是第一句话，它很
长，跨越两行。这是第二句话，也很长吧。
中文和 English
混排的句子在这里结束。
"""


def test_markdown_gives_text_with_its_lines_and_nothing_else() -> None:
    assert at("a.md", MARKDOWN) == [
        (7, "First sentence of a paragraph that spans lines."),
        (8, "Second one here is fine and dandy."),
        (10, "Quoted text here is also a good sentence that spans."),
        (11, "Single line quote sentence is fine here."),
        (13, "item one has no end but many words and continues here"),
        (15, "Task is done and it is very good."),
        (17, "First."),
        (17, "Second one."),
        (38, "这是第一句话，它很长，跨越两行。"),
        (39, "这是第二句话，也很长吧。"),
        (40, "中文和 English 混排的句子在这里结束。"),
    ]


def test_headings_are_context() -> None:
    headings = {s.text[:5]: s.heading for s in read_sentences("a.md", MARKDOWN)}
    assert headings["First"] == "Head one c"
    assert headings["这是第二句"] == "Setext heading"


def test_a_quote_over_two_lines_is_not_verbatim_so_it_is_not_quoted() -> None:
    found = quotable("a.md", MARKDOWN)
    assert "Single line quote sentence is fine here." in found
    assert not any(text.startswith("Quoted text") for text in found)


TEXT = """INTRODUCTION

This is the first paragraph of the text
and it goes on. Second sentence is here too.

Title here
==========
* item one is here now. And item
  goes on.
* item two is here

Model
   A structure that represents a thing.
> quoted line of text here.

Name      Value      Other
------------------------------
第三章 消息

　　中文段落以全角空格开头。第二句也在这里吧。
"""


def test_plain_text_gives_text_with_its_lines() -> None:
    assert at("a.txt", TEXT) == [
        (3, "This is the first paragraph of the text and it goes on."),
        (4, "Second sentence is here too."),
        (8, "item one is here now."),
        (8, "And item goes on."),
        (10, "item two is here"),
        (12, "Model"),
        (13, "A structure that represents a thing."),
        (14, "quoted line of text here."),
        (20, "中文段落以全角空格开头。"),
        (20, "第二句也在这里吧。"),
    ]
    headings = [s.heading for s in read_sentences("a.txt", TEXT)]
    assert headings[0] == "INTRODUCTION"
    assert headings[2] == "Title here"
    assert headings[-1] == "第三章 消息"


@pytest.mark.parametrize(
    "text",
    [
        "Too short.",
        "The following are supported by this version:",
        "No end of a paragraph and nothing more",
        "A row | of | a table | is not text.",
        "Half of `code is not a sentence.",
        "Half of **bold is not a sentence.",
        "![An image is not a text](x.png) at all.",
        "1, 2, 3, 4, 5, 6 + 7 = 28 / 1 a b c d.",
        "`a.b`, `c.d`, `e.f`, `g.h`, `i.j`.",
        "短句。",
    ],
)
def test_what_reads_badly_on_its_own_is_not_quoted(text: str) -> None:
    assert quotable("a.md", text) == []


def test_the_partner_of_a_split_emphasis_is_dropped() -> None:
    text = "**Note: this sentence is bold. And this one is bold too.**"
    assert [one for _, one in at("a.md", text)] == [
        "Note: this sentence is bold.",
        "And this one is bold too.",
    ]


@pytest.mark.parametrize(
    ("text", "leans"),
    [
        ("However, it is not enough for us.", True),
        ("They are stored in the same place.", True),
        ("因此消息不会在重启以后丢失。", True),
        ("Messages are stored in a place.", False),
        ("There are three replicas of it.", False),
        ("消息不会在重启以后丢失。", False),
    ],
)
def test_sentences_that_point_back_are_known(text: str, leans: bool) -> None:
    assert [sentence.leans for sentence in read_sentences("a.md", text)] == [leans]


WORDS = st.sampled_from(
    [
        "The bus",
        "is fast",
        "e.g. here",
        "2.14",
        "版本很新",
        "消息。",
        "Yes!",
        "`a. b`",
        "**bold**",
        "(see it.)",
        "end.",
        "因此",
    ]
)
LINE = st.lists(WORDS, min_size=1, max_size=6).map(" ".join)
PREFIX = st.sampled_from(["", "", "", "# ", "- ", "> ", "  ", "    ", "1. ", "| "])
DOCUMENT = st.lists(st.one_of(st.just(""), st.tuples(PREFIX, LINE).map("".join)), max_size=30).flatmap(
    lambda lines: st.sampled_from(["\n", "\r\n", "\r"]).map(lambda end: end.join(lines))
)


@given(DOCUMENT, st.sampled_from(["x.md", "x.txt"]))
def test_every_quotable_sentence_is_verbatim_at_its_line(document: str, name: str) -> None:
    lines = split_lines(document)
    found: list[Sentence] = list(read_sentences(name, document))
    for sentence in found:
        if sentence.quotable:
            assert stands_at(lines, sentence.line, sentence.text)
            # The same once more, by other means: all white space aside, it stands there.
            rest = re.sub(r"\s+", "", "".join(lines[sentence.line - 1 :]))
            first = re.sub(r"\s+", "", lines[sentence.line - 1])
            assert 0 <= rest.find(re.sub(r"\s+", "", sentence.text)) < len(first)
    assert [sentence.order for sentence in found] == list(range(len(found)))
    assert [sentence.line for sentence in found] == sorted(sentence.line for sentence in found)


@given(DOCUMENT, st.sampled_from([markdown_blocks, plain_blocks]))
def test_blocks_are_in_order_and_never_empty(document: str, read: object) -> None:
    assert callable(read)
    numbers = [number for block in read(document) for number, _ in block.lines]
    assert numbers == sorted(set(numbers))
    assert all(line for block in read(document) for _, line in block.lines)


def test_a_block_knows_the_lines_of_its_sentences() -> None:
    block = Block(Kind.PARAGRAPH, "", 0, ((4, "One two"), (5, "three. Four. Five"), (6, "six.")))
    assert list(split_block(block)) == [(4, 5, "One two three."), (5, 5, "Four."), (5, 6, "Five six.")]


@pytest.mark.parametrize(
    ("line", "text", "there"),
    [
        (1, "One two three.", True),
        (1, "two three. Four", True),
        (2, "Four.", True),
        (1, "Four.", False),
        (3, "Four.", False),
        (0, "One", False),
        (9, "One", False),
        (1, "One two four.", False),
        (1, "one two three.", False),
        (1, "", False),
        (4, "中文跨行。", True),
        (4, "中文 跨行。", False),
    ],
)
def test_evidence_is_checked_against_the_lines_themselves(line: int, text: str, there: bool) -> None:
    assert stands_at(["One two", "  three. Four.", "", "中文", "跨行。"], line, text) is there
