# ruff: noqa: RUF001 - Chinese punctuation is meant
"""Cuts a document into blocks of running text, each line with its number; everything else is left out.

Markdown is read by markdown-it-py (CommonMark): code, tables, HTML, comments, front matter and link
definitions give no text, headings become the context of what follows. In plain text blank lines, list
marks and underlines do the same work.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from markdown_it import MarkdownIt

from agents.sources import split_lines

MAX_HEADING_CHARS = 120
MAX_TERM_CHARS = 50

_FRONT_MATTER_ENDS = {"---": ("---", "..."), "+++": ("+++",)}
_FRONT_MATTER_LINES = 200
_TASK_BOX = re.compile(r"^\[[ xX]\]\s+")
_LINK = re.compile(r"!?\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])")
_TAG = re.compile(r"<[^>]*>")
_UNDERLINE = re.compile(r"^([=\-~^*#+_.`'\"])\1{2,}$")
_LIST_MARK = re.compile(r"^([-*+•·●○▪]|\(?\d{1,3}[.)、]|\(?[a-zA-Z][.)])\s+(?=\S)")
_TITLE = re.compile(
    r"^(\d{1,2}(\.\d{1,3}){0,4}\.?\s+\S.*|#{1,6}\s+\S.*|第[\d一二三四五六七八九十百]+[章节回部篇].*|[一二三四五六七八九十]+、.*)$"
)
_TERMINATED = re.compile(r"[.!?。！？；;,，:：][\"'”’」』)）*_]*$")
_COLUMNS = re.compile(r"\S(\s{3,}|\t+)\S|^\||\s\|\s.*\s\|\s")
_LETTER = re.compile(r"\w")


class Kind(StrEnum):
    """What sort of text a block is."""

    PARAGRAPH = "paragraph"
    ITEM = "item"
    QUOTE = "quote"


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive lines of one paragraph, list item or block quote: (line number, text without marks).

    `heading` is the nearest one above, `section` how many there were so far in the document.
    """

    kind: Kind
    heading: str
    section: int
    lines: tuple[tuple[int, str], ...]


def markdown_blocks(text: str) -> Iterator[Block]:
    """The blocks of a Markdown document, in its order."""
    lines = _without_front_matter(split_lines(text))
    parser = MarkdownIt("commonmark").enable("table")
    parser.core.ruler.disable(["inline", "text_join"])
    heading, section = "", 0
    containers: list[str] = []
    tables = 0
    in_heading = False
    for token in parser.parse("\n".join(lines)):
        opened = token.type.removesuffix("_open")
        if token.type in ("blockquote_open", "list_item_open"):
            containers.append(opened)
        elif token.type in ("blockquote_close", "list_item_close"):
            containers.pop()
        elif opened == "table" or token.type == "table_close":
            tables += token.nesting
        elif opened == "heading" or token.type == "heading_close":
            in_heading = token.nesting > 0
        elif token.type == "inline" and token.map is not None and not tables:
            if in_heading:
                heading, section = plain_heading(token.content), section + 1
            else:
                numbered = _numbered(token.content.split("\n"), token.map[0], lines)
                yield from _cut(_kind(containers), heading, section, numbered)


def plain_blocks(text: str) -> Iterator[Block]:
    """The blocks of a plain text, in its order."""
    lines = split_lines(text)
    heading, section = "", 0
    kind = Kind.PARAGRAPH
    gathered: list[tuple[int, str]] = []
    for number, raw in enumerate(lines, start=1):
        line = raw.strip()
        following = lines[number].strip() if number < len(lines) else ""
        title = _plain_title(line, following, lonely=not gathered)
        if title is not None or _is_no_text(line):
            yield from _cut(kind, heading, section, gathered)
            gathered, kind = [], Kind.PARAGRAPH
            if title is not None:
                heading, section = title, section + 1
            continue
        mark = _LIST_MARK.match(line)
        quoted = line.startswith(">")
        if mark or quoted != (kind is Kind.QUOTE) or (kind is Kind.PARAGRAPH and _is_term(lines, gathered, number)):
            yield from _cut(kind, heading, section, gathered)
            gathered = []
            kind = Kind.QUOTE if quoted else Kind.ITEM if mark else Kind.PARAGRAPH
        line = line[mark.end() :] if mark else line.lstrip("> \t") if quoted else line
        if line:
            gathered.append((number, line))
    yield from _cut(kind, heading, section, gathered)


def plain_heading(text: str) -> str:
    """A heading without its inline marks, on one line."""
    text = _TAG.sub("", _LINK.sub(r"\1", text.replace("\n", " ")))
    text = re.sub(r"[*`]+|\{#[^}]*\}|#+\s*$|(?<!\w)_+|_+(?!\w)", "", text)
    return " ".join(text.split())[:MAX_HEADING_CHARS]


def _without_front_matter(lines: list[str]) -> list[str]:
    ends = _FRONT_MATTER_ENDS.get(lines[0].rstrip())
    if ends is not None:
        for index, line in enumerate(lines[1:_FRONT_MATTER_LINES], start=1):
            if not line.strip():
                break  # a rule and then a paragraph, not front matter
            if line.rstrip() in ends:
                return [""] * (index + 1) + lines[index + 1 :]
    return lines


def _kind(containers: list[str]) -> Kind:
    if "blockquote" in containers:
        return Kind.QUOTE
    return Kind.ITEM if containers else Kind.PARAGRAPH


def _numbered(contents: list[str], start: int, lines: list[str]) -> list[tuple[int, str]]:
    """Pairs the lines of a paragraph with their numbers; a line that is not verbatim in the file is empty."""
    numbered = []
    for offset, content in enumerate(contents):
        stripped = content.strip()
        known = start + offset < len(lines) and stripped in lines[start + offset]
        numbered.append((start + offset + 1, stripped if known else ""))
    return numbered


def _cut(kind: Kind, heading: str, section: int, numbered: list[tuple[int, str]]) -> Iterator[Block]:
    """Ends a block also where a line is empty, a `:::` fence, or ends with a hard break (`\\`)."""
    part: list[tuple[int, str]] = []
    for number, line in numbered:
        text = line if part else _TASK_BOX.sub("", line)
        fence = text.startswith(":::")
        if text and not fence:
            part.append((number, text.removesuffix("\\").rstrip()))
        if part and (not text or fence or text.endswith("\\")):
            yield Block(kind, heading, section, tuple(pair for pair in part if pair[1]))
            part = []
    if part:
        yield Block(kind, heading, section, tuple(part))


def _plain_title(line: str, following: str, *, lonely: bool) -> str | None:
    """The heading that this line of a plain text is, if it is one."""
    if not line or not lonely or len(line) > MAX_HEADING_CHARS or _TERMINATED.search(line):
        return None
    if _UNDERLINE.match(following) and len(following) * 2 >= len(line) and _LETTER.search(line):
        return plain_heading(line)
    if following:
        return None
    shouted = line.isupper() and len(line) > 3
    return plain_heading(line.lstrip("# ")) if shouted or _TITLE.match(line) else None


def _is_term(lines: list[str], gathered: list[tuple[int, str]], number: int) -> bool:
    """Whether the block so far is a term alone on its line, and this deeper line begins its definition."""
    if len(gathered) != 1 or len(gathered[0][1]) > MAX_TERM_CHARS or _TERMINATED.search(gathered[0][1]):
        return False
    return _indent(lines[number - 1]) > _indent(lines[number - 2])


def _indent(line: str) -> int:
    return len(line.expandtabs()) - len(line.expandtabs().lstrip())


def _is_no_text(line: str) -> bool:
    """Blank lines, rules, tables, drawings and reStructuredText directives end a block and are not read."""
    return not _LETTER.search(line) or line.startswith(".. ") or _COLUMNS.search(line) is not None
