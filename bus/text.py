"""Texts of strangers, made fit for the wire, for a line, and for a terminal."""

from __future__ import annotations

import unicodedata


def plain(text: str, limit: int) -> str:
    """A text that UTF-8 can carry (lone surrogates become `?`), cut to `limit` characters."""
    plain = text.encode("utf-8", "replace").decode()
    return plain if len(plain) <= limit else f"{plain[: limit - 1]}…"


def one_line(text: str, limit: int) -> str:
    """As `plain`, with every run of white space as one space."""
    return plain(" ".join(text.split()), limit)


def clean(text: str) -> str:
    """A text without control and format characters, which a terminal would obey; each becomes `�`."""
    if text.isprintable():
        return text
    return "".join(char if unicodedata.category(char)[0] != "C" else "�" for char in text)
