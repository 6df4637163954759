"""Assignments: `payload.items.0.name="x"`, one change of a JSON document as a person types it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

# A part ends at an unescaped dot; the path ends at the first unescaped equals sign.
_PART = re.compile(r"((?:[^.=\\]|\\.)*)([.=])", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_SPECIAL = re.compile(r"([.=\\])")


@dataclass(frozen=True, slots=True)
class Assignment:
    """A path from the top of a document, and the JSON value to put there."""

    path: tuple[str, ...]
    value: Any

    @classmethod
    def parse(cls, text: str) -> Assignment:
        r"""Reads `path=value`: keys and list indexes with dots between them, then any JSON value.

        `\.`, `\=` and `\\` stand for these characters inside a key. Raises ValueError that says what is wrong.
        """
        parts, position = [], 0
        while True:
            found = _PART.match(text, position)
            if found is None:
                raise ValueError(f"{text!r} is not PATH=JSON, for example payload.items.0=7")
            parts.append(_ESCAPE.sub(r"\1", found[1]))
            position = found.end()
            if found[2] == "=":
                break
        try:
            value = json.loads(text[position:])
        except (ValueError, RecursionError):
            shown = json.dumps(text[position:], ensure_ascii=False)
            raise ValueError(
                f"{text!r}: the value is not JSON; a text needs its quotes: '{text[:position]}{shown}'"
            ) from None
        return cls(tuple(parts), value)

    def apply(self, document: Any) -> Any:
        """The document with the value set; the given one is changed.

        Missing objects on the way are made; the index one past the end of a list appends. Raises ValueError, naming the
        place, where the path leads through something else.
        """
        holder = {"": document}
        place: Any = holder
        part = ""
        for depth, following in enumerate(self.path):
            place = self._step(place, part, depth)
            part = following
        self._put(place, part)
        return holder[""]

    def _step(self, place: Any, part: str, depth: int) -> Any:
        """The value at `part` of `place`, made when it is missing."""
        if isinstance(place, dict):
            return place.setdefault(part, {})
        index = self._index(place, part, depth)
        if index == len(place):
            place.append({})
        return place[index]

    def _put(self, place: Any, part: str) -> None:
        if isinstance(place, dict):
            place[part] = self.value
            return
        index = self._index(place, part, len(self.path))
        place[index : index + 1] = [self.value]

    def _index(self, place: Any, part: str, depth: int) -> int:
        where = render_path(self.path[: depth - 1]) if depth > 1 else "the document"
        if not isinstance(place, list):
            kind = "null" if place is None else type(place).__name__
            raise ValueError(f"{where} is no object and no list but {kind}; {part!r} cannot be set in it")
        if not (part.isascii() and part.isdigit()) or len(part) > 9 or int(part) > len(place):
            raise ValueError(f"{where} is a list of {len(place)}; {part!r} must be an index from 0 to {len(place)}")
        return int(part)


def render_path(parts: tuple[str, ...]) -> str:
    """A path as it is typed."""
    return ".".join(_SPECIAL.sub(r"\\\1", part) for part in parts)
