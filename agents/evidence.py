# ruff: noqa: RUF001 - Chinese punctuation is meant
"""What "verbatim" means, in one place: how lines are joined, and whether a sentence stands where it says.

A sentence may span several lines of its paragraph. Joined, a line break and the indentation around it become
one space, or nothing between two characters of a script written without spaces (Chinese, Japanese). Nothing
else of the source is ever changed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# Han, kana, CJK punctuation and full-width forms: scripts whose words no space divides.
UNSPACED = "\u2e80-\u2fdf\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uff60\U00020000-\U0003ffff"
_UNSPACED_CHAR = re.compile(f"[{UNSPACED}“”‘’…—]")
_UNSPACED_LETTER = re.compile(f"[{UNSPACED}]")


def glue(left: str, right: str) -> str:
    """What stands between two lines (both stripped, not empty) once they are joined."""
    last, first = left[-1], right[0]
    # Quotes and dashes are shared with spaced scripts, so one of the two must be beyond doubt.
    unspaced = _UNSPACED_CHAR.match(last) and _UNSPACED_CHAR.match(first)
    return "" if unspaced and (_UNSPACED_LETTER.match(last) or _UNSPACED_LETTER.match(first)) else " "


def stands_at(lines: Sequence[str], line: int, text: str) -> bool:
    """Whether `text` starts on line `line` (from 1) of a file that has these `lines`, verbatim."""
    if not text or not 1 <= line <= len(lines):
        return False
    joined = lines[line - 1].strip()
    first_length = len(joined)
    for following in lines[line:]:
        stripped = following.strip()
        if not joined or not stripped or len(joined) >= first_length + len(text):
            break
        joined += glue(joined, stripped) + stripped
    start = joined.find(text)
    return 0 <= start < first_length
