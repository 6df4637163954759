"""What the comparison works on: the schemas of one document in normal form."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Print:
    """A digest of a text, None where there is none (too deep, or not JSON), and whether it holds references."""

    digest: bytes | None
    refers: bool


def _printed(raw: Any) -> Print:
    try:
        text = orjson.dumps(raw, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        return Print(None, refers=True)
    if b'"$dynamicRef"' in text:
        return Print(None, refers=True)
    return Print(hashlib.blake2b(text, digest_size=16).digest(), b'"$ref"' in text)


@dataclass(slots=True, eq=False)
class Node:
    """One schema of a document: its raw form, and its assertions as `words` (see `_Reader`).

    Identity is what counts: two nodes are the same only if they are one object.
    """

    raw: Any
    words: dict[str, Any]
    _print: Print | None = None

    def print(self) -> Print:
        """What the raw text of the schema comes to; computed once."""
        if self._print is None:
            self._print = _printed(self.raw)
        return self._print

    def target(self) -> Node:
        """Where a mere `$ref` goes; itself when it is more than that."""
        node = self
        while node.words.keys() == {"$ref"}:
            node = node.words["$ref"]
        return node

    def children(self) -> Iterator[Node]:
        """Every schema directly inside this one."""
        for value in self.words.values():
            yield from nodes_in(value)


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """A schema file that was read: `root`, and the dialect that its `$schema` (or its words) name.

    `refers_to_definitions`: no `$ref` goes anywhere but into `$defs` or `definitions`.
    """

    raw: Any
    root: Node
    dialect: str
    refers_to_definitions: bool

    def shares_definitions(self, other: Document) -> bool:
        """True when equal texts of both mean the same: one dialect, and every `$ref` goes to an equal definition."""
        return self.dialect == other.dialect and self._definitions() == other._definitions() is not None

    def _definitions(self) -> bytes | None:
        if not isinstance(self.raw, dict):
            return b""
        definitions = _printed([self.raw.get(word) for word in ("$defs", "definitions")])
        return definitions.digest if self.refers_to_definitions else None


def nodes_in(value: Any) -> Iterator[Node]:
    """The nodes in the value of a word: one, a tuple of them, or a mapping to them."""
    if isinstance(value, Node):
        yield value
    elif isinstance(value, tuple):
        yield from (item for item in value if isinstance(item, Node))
    elif isinstance(value, dict):
        yield from (item for item in value.values() if isinstance(item, Node))
