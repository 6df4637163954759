"""Where in a text JSON may stand: the outermost objects and arrays, in code fences or prose, also unfinished ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_UNCLOSED = 4
# Deeper than any reader of ours goes; a scan ends there.
MAX_SCANNED_DEPTH = 128

# What follows an opening bracket of JSON, or of what a model takes for it; prose in brackets looks otherwise.
_OPENING = re.compile(
    r"""\{(?=\s*(?:["'“}/]|[A-Za-z_][\w-]{0,63}\s*:|\Z))|\[(?=\s*(?:["'“{\[\]/\d-]|(?:true|false|null|True|False|None)\b|[tfnTFN][a-z]{0,3}\Z|\Z))"""
)
_FENCE_BEFORE = re.compile(r"```[\w+-]{0,20}[ \t]*\r?\n?\s*\Z")
_FENCED_SCALAR = re.compile(r"```[\w+-]{0,20}[ \t]*\r?\n[ \t]*([^\s{\[`][^\r\n]*?)[ \t]*\r?\n[ \t]*```")
_TOKEN = re.compile(
    r"""(?P<open>[{\[])|(?P<close>[}\]])|(?P<mark>[,:])|"(?:[^"\\]|\\.)*(?P<dq>"?)|(?P<single>')|(?P<word>[^\s"'{}\[\],:][^\s"{}\[\],:]*)|\s+""",
    re.DOTALL,
)
_SINGLE_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*(?P<end>'?)", re.DOTALL)
_HALF_ESCAPE = re.compile(
    r"(?<!\\)(?:\\\\)*(\\(?:u[0-9a-fA-F]{0,3})?|\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?)\Z"
)
_CLOSER = {"{": "}", "[": "]"}


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a text. `closed` is it without what its truncated end left incomplete, and with the brackets closed.

    `around` says in words what was left out around it, and is empty for a whole text. `is_inner`: it lies in another
    one that has no end, and is worth a look only when nothing can be made of that.
    """

    text: str
    closed: str
    is_truncated: bool = False
    depth: int = 0
    around: str = ""
    is_inner: bool = False


def regions(text: str, limit: int) -> Iterator[Region]:
    """The outermost regions, at most `limit`: those in code fences first, then the longest."""
    at, unclosed, scalars = 0, 0, list(_FENCED_SCALAR.finditer(text))
    found = [(True, len(one[1]), Region(one[1], one[1], around="code fences were removed")) for one in scalars]
    while (opening := _OPENING.search(text, at)) is not None and unclosed <= MAX_UNCLOSED:
        inside = next((one for one in scalars if one.start() <= opening.start() < one.end()), None)
        if inside is not None:
            at = inside.end()
            continue
        scan = _Scan(text, opening.start())
        is_fenced = _FENCE_BEFORE.search(text, max(0, opening.start() - 64), opening.start()) is not None
        around = "code fences were removed" if is_fenced else "text around it was left out"
        whole = not text[: opening.start()].strip() and not text[scan.end :].strip()
        region = scan.region("" if whole else around, is_inner=unclosed > 0)
        found.append((is_fenced, scan.end - scan.start, region))
        unclosed += not scan.is_closed
        at = scan.end if scan.is_closed else opening.end()
    found.sort(key=lambda one: one[:2], reverse=True)
    yield from (region for _, _, region in found[:limit])


class _Scan:
    """One pass from an opening bracket to the one that closes it, or to the end of the text."""

    def __init__(self, text: str, start: int) -> None:
        self.text, self.start, self.end = text, start, len(text)
        self.is_closed, self.depth = False, 0
        self._stack: list[str] = []
        self._keep, self._kept_stack = start, ""
        self._tail = ""
        self._run()

    def region(self, around: str, *, is_inner: bool) -> Region:
        """What was found."""
        whole = self.text[self.start : self.end]
        if self.is_closed:
            return Region(whole, whole, False, self.depth, around, is_inner)
        closed = f"{self.text[self.start : self._keep]}{self._tail}{self._kept_stack[::-1]}"
        return Region(whole, closed, True, self.depth, around, is_inner)

    def _run(self) -> None:
        at, before, word_end = self.start, "", None
        while len(self._stack) <= MAX_SCANNED_DEPTH and (token := _TOKEN.match(self.text, at)) is not None:
            start, at = at, token.end()
            if word_end is not None:
                # A number or word is complete only when something stands behind it.
                self._complete(word_end)
                word_end = None
            if token["single"] and before not in ("", "{", "[", ",", ":"):
                before = "word"
                continue
            quoted = _SINGLE_QUOTED.match(self.text, start) if token["single"] else None
            if quoted is not None:
                at = quoted.end()
            if token["open"]:
                self._stack.append(_CLOSER[token["open"]])
                self.depth = max(self.depth, len(self._stack))
                self._complete(at)
                before = token["open"]
            elif token["close"]:
                while self._stack and self._stack.pop() != token["close"]:
                    pass
                if not self._stack:
                    self.end, self.is_closed = at, True
                    return
                self._complete(at)
                before = token["close"]
            elif token["mark"]:
                before = token["mark"]
            elif token["word"]:
                if self._is_value(before):
                    word_end = at
                before = "word"
            elif quoted is not None or self.text[start] == '"':
                is_ended = bool(quoted["end"] if quoted is not None else token["dq"])
                if self._is_value(before):
                    if is_ended:
                        self._complete(at)
                    else:
                        self._half_text(start, at)
                before = "text"

    def _is_value(self, before: str) -> bool:
        return before in (":", "[") or (before == "," and self._stack[-1] == "]")

    def _complete(self, at: int) -> None:
        self._keep, self._kept_stack = at, "".join(self._stack)

    def _half_text(self, start: int, at: int) -> None:
        half = _HALF_ESCAPE.search(self.text, max(start + 1, at - 32), at)
        end = half.start(1) if half is not None else at
        if end > start + 1:
            self._complete(end)
            self._tail = self.text[start]
