"""What the comparison works on: the schemas of one document in normal form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, eq=False)
class Node:
    """One schema of a document: its raw form, and its assertions as `words` (see `_Reader`).

    Identity is what counts: two nodes are the same only if they are one object.
    """

    raw: Any
    words: dict[str, Any]

    def children(self) -> Iterator[Node]:
        """Every schema directly inside this one."""
        for value in self.words.values():
            yield from nodes_in(value)


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """A schema file that was read: `root`, and the dialect that its `$schema` (or its words) name."""

    raw: Any
    root: Node
    dialect: str


def nodes_in(value: Any) -> Iterator[Node]:
    """The nodes in the value of a word: one, a tuple of them, or a mapping to them."""
    if isinstance(value, Node):
        yield value
    elif isinstance(value, tuple):
        yield from (item for item in value if isinstance(item, Node))
    elif isinstance(value, dict):
        yield from (item for item in value.values() if isinstance(item, Node))
