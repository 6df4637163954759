# ruff: noqa: RUF001 - Chinese punctuation is meant
"""Splits blocks of text into sentences, English and Chinese, each with the line where it starts.

A sentence keeps the characters of the source exactly (see evidence.py). Splitting never loses or reorders
text; whether a sentence is fit to be quoted in a brief is a separate question (`Sentence.quotable`).
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from agents.blocks import Block, Kind, markdown_blocks, plain_blocks
from agents.evidence import UNSPACED, glue
from agents.sources import is_markdown

MAX_CHARS = 500
MIN_WORDS = 5
MIN_UNSPACED_CHARS = 8
MAX_POSITION = 1 << 62

_CLOSERS = r"(?:[\"'”’»)\]）】」』》〉*_~`]|\[\^?[\w-]{1,20}\])*"
_TERMINATOR = re.compile(rf"[.!?。！？；…‥]+{_CLOSERS}")
_WIDE = frozenset("。！？；")
_GOES_ON = frozenset("，、,：:；;。！？）)】」』》”’")
_ENUMERATOR = re.compile(r"^[(\[]?(\d{1,3}|[A-Za-z]|[IVXivx]{1,4})\.$")
_UNSPACED_LETTER = re.compile(f"[{UNSPACED}]")
_WORD_BREAK = re.compile(r"[\s(\[（“\"'`*_/]")

# Never the end of a sentence.
_ABBREVIATION = re.compile(
    r"mr|mrs|ms|dr|prof|st|mt|gen|sen|rep|rev|hon|capt|lt|col|sgt|e\.g|i\.e|eg|ie|cf|vs|viz|al|approx|resp|incl|"
    r"esp|ca|figs|eqs|u\.s|u\.k|ph\.d|b\.c|a\.d|dept|est",
    re.IGNORECASE,
)
# Not the end before a number: `Fig. 3`, `No. 5`, `Jan. 2`.
_BEFORE_NUMBER = re.compile(
    r"nos?|fig|eq|sect?|ch|chap|vol|pp?|par|art|ver|v|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec",
    re.IGNORECASE,
)

# Inside these no sentence ends: code, link targets, addresses, tags.
_OPAQUE = re.compile(
    r"(?P<ticks>`+)(?!`).{1,400}?(?<!`)(?P=ticks)(?!`)|\]\([^()\s]*(?:\([^()\s]*\)[^()\s]*)*(?:\s+\"[^\"]*\")?\)"
    r"|<[A-Za-z/!][^<>]*>|(?:https?|ftp|file)://[^\s<>]*[^\s<>.,;:!?\"'”’)\]*_。，；！？]"
)
# Inside these a sentence ends only together with them, as long as they are short.
_ENCLOSED = re.compile(
    r"“[^“”]{1,200}”|(?<![\w\"])\"[^\"]{1,200}\"(?!\w)|「[^「」]{1,200}」|『[^『』]{1,200}』"
    r"|\([^()]{1,200}\)|（[^（）]{1,200}）|《[^《》]{1,100}》"
)
_SOFT_END = re.compile(rf"[.!?。！？；…‥]{_CLOSERS}$")

_EDGE_MARKS = re.compile(r"^[*_~]+|[*_~]+$")
_WORD = re.compile(rf"[^\W_{UNSPACED}]+(?:['’-][^\W_{UNSPACED}]+)*")
_BLOCK_START = re.compile(r"^([#>|+\-=~:]|\*\s|```|\d{1,3}[.)]\s|\[[^\]]*\]:|<)")
_ENDED = re.compile(rf"(?:[.!?。！？；…]|\.\.\.){_CLOSERS}$")
# A small letter begins a sentence only in names like `nats-server`; else something before it was lost.
_CUT_START = re.compile(r"[a-z]+(?![\w.:/-])")
_DANGLING_END = re.compile(r"[:：,，、(（\[-]$")
_MARKUP = re.compile(r"!\[|<!--|<[A-Za-z/][^>]*>|\{[%{]|\\[a-z]{3,}")
_NO_LETTER = re.compile(r"[\W\d_](?<!\s)")
_CODE = re.compile(r"`[^`]+`")
_ADDRESS = re.compile(r"(?:https?|ftp|file)://\S+|\]\([^)]*\)")

# Words that point back: without the sentence before it, such a sentence hangs in the air.
_LEANING = re.compile(
    r"^[\"'“‘(*_]*(?:(?:this|that|these|those|it|its|they|their|them|he|she|his|her|such|both|neither|either|"
    r"then|thus|hence|therefore|however|but|and|or|so|yet|also|otherwise|instead|moreover|furthermore|"
    r"nevertheless|nonetheless|meanwhile|consequently|accordingly|similarly|likewise|finally|again|besides|"
    r"additionally|in addition|as a result|for example|for instance|in this|in that|in these|in such|at this|"
    r"on the other hand|if so|if not|the same|the latter|the former|the following|another|because of this|"
    r"after that|after this|before that)\b(?!-)|这|那|它|他|她|其|此|该|因此|所以|但|然而|不过|而且|并且|"
    r"另外|此外|同时|于是|例如|比如|否则|也就是|换句话说|总之|接着|然后|最后|相反|后者|前者|以上|以下|如下)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of a source. `order` counts the sentences of the file, `block` its blocks, from 0;
    `section` counts the headings before it."""

    file: str
    line: int
    text: str
    heading: str
    order: int
    block: int
    section: int
    quotable: bool
    complete: bool
    leans: bool


def read_sentences(file: str, text: str) -> Iterator[Sentence]:
    """The sentences of a document, in its order."""
    blocks = markdown_blocks(text) if is_markdown(file, text) else plain_blocks(text)
    order = 0
    for index, block in enumerate(blocks):
        for line, last_line, found in split_block(block):
            # A quote's marks stand between its lines, so only a sentence within one line is verbatim.
            broken = block.kind is Kind.QUOTE and last_line != line
            complete = _ENDED.search(found) is not None and _CUT_START.match(found) is None
            yield Sentence(
                file=file,
                line=line,
                text=found,
                heading=block.heading,
                order=order,
                block=index,
                section=block.section,
                quotable=not broken and _is_quotable(found, block.kind, complete=complete),
                complete=complete,
                leans=leans(found),
            )
            order += 1


def leans(text: str) -> bool:
    """Whether a sentence points back, so that it needs the one before it to be understood."""
    return _LEANING.match(text) is not None


def split_block(block: Block) -> Iterator[tuple[int, int, str]]:
    """Sentences of a block as (line of the start, line of the end, text)."""
    parts: list[str] = []
    offsets: list[int] = []
    length = 0
    for _, line in block.lines:
        between = glue(parts[-1], line) if parts else ""
        offsets.append(length + len(between))
        parts += (between, line) if parts else (line,)
        length = offsets[-1] + len(line)
    joined = "".join(parts)
    for start, end in sentence_spans(joined):
        text = _without_odd_marks(joined[start:end])
        start = joined.index(text, start)
        first = block.lines[bisect_right(offsets, start) - 1][0]
        last = block.lines[bisect_left(offsets, start + len(text)) - 1][0]
        yield first, last, text


def sentence_spans(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of each sentence; between two of them there is nothing but white space."""
    text = text.rstrip()
    opaque = [match.span() for match in _OPAQUE.finditer(text)]
    enclosed = [match.span() for match in _ENCLOSED.finditer(text) if not _within(match.start(), opaque)]
    start = _skip_space(text, 0)
    for match in _TERMINATOR.finditer(text):
        end = match.end()
        if match.start() < start or _within(match.start(), opaque):
            continue
        shell = _within(match.start(), enclosed)
        if shell is not None:
            if not (end >= shell[1] and _SOFT_END.search(text[shell[0] : shell[1] - 1])):
                continue
            end = max(end, shell[1])
        if _ends_here(text, start, match, end):
            yield start, end
            start = _skip_space(text, end)
    if start < len(text):
        yield start, len(text)


def _within(position: int, spans: list[tuple[int, int]]) -> tuple[int, int] | None:
    """The span that holds this position; spans are sorted and do not overlap."""
    index = bisect_right(spans, (position, MAX_POSITION)) - 1
    return spans[index] if index >= 0 and position < spans[index][1] else None


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def _ends_here(text: str, start: int, match: re.Match[str], end: int) -> bool:
    """Whether the sentence that began at `start` ends with this terminator (closing marks included)."""
    if end >= len(text):
        return True
    marks = match.group().rstrip("\"'”’»)]）】」』》〉*_~`")
    following = text[_skip_space(text, end)]
    spaced = text[end].isspace()
    if any(mark in _WIDE for mark in marks):
        return following not in _GOES_ON
    if not spaced:
        # `真的吗?是的`: a narrow mark among characters that no space divides.
        before = text[match.start() - 1] if match.start() else ""
        return marks[0] in "!?" and bool(_UNSPACED_LETTER.match(before) and _UNSPACED_LETTER.match(following))
    if following.islower() or following in _GOES_ON:
        return False
    return marks != "." or not _is_abbreviation(text, start, match.start(), following)


def _is_abbreviation(text: str, start: int, stop: int, following: str) -> bool:
    if stop - start < 6 and _ENUMERATOR.match(text[start : stop + 1]):
        return True
    word = _WORD_BREAK.split(text[max(start, stop - 20) : stop])[-1]
    if len(word) == 1 and word.isalpha() and word.isupper() and word.isascii() and word != "I":
        return True
    if following.isdigit() and _BEFORE_NUMBER.fullmatch(word):
        return True
    return _ABBREVIATION.fullmatch(word) is not None


def _without_odd_marks(text: str) -> str:
    """Drops an emphasis mark at the edge whose partner went to another sentence."""
    for mark in ("**", "__", "~~"):
        if text.count(mark) % 2:
            edge = _EDGE_MARKS.search(text)
            if edge is not None and mark in edge.group():
                text = (text[edge.end() :] if edge.start() == 0 else text[: edge.start()]).strip() or text
    return text


def _is_quotable(text: str, kind: Kind, *, complete: bool) -> bool:
    """Fit to stand in a brief: a whole statement in words, that breaks no Markdown around it."""
    if len(text) > MAX_CHARS or _BLOCK_START.match(text) or _MARKUP.search(text) or _DANGLING_END.search(text):
        return False
    if not complete and kind is not Kind.ITEM:
        return False
    if text.count("`") % 2 or text.count("**") % 2 or text.count("|") > 2 or text.count("[") != text.count("]"):
        return False
    prose = _CODE.sub("", _ADDRESS.sub("", text))
    unspaced = len(_UNSPACED_LETTER.findall(prose))
    words = len(_WORD.findall(prose))
    if words < MIN_WORDS and unspaced < MIN_UNSPACED_CHARS:
        return False
    return len(_NO_LETTER.findall(text)) <= 0.35 * len("".join(text.split()))
