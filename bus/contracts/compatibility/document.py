"""A JSON Schema document as one normal form: nodes with checked keywords, every `$ref` resolved.

Draft-07 and 2020-12 become the same words (those of 2020-12); other dialects, remote references and malformed
keywords are refused with CannotTell. Reading is iterative: depth is no danger here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote

from .keywords import READERS
from .node import Document, Node, nodes_in
from .values import CannotTell

DRAFT_07: Final = "draft-07"
DRAFT_2020_12: Final = "2020-12"
MAX_NODES: Final = 30_000
MAX_PLACE_CHARS: Final = 10_000

_DIALECTS: Final = {
    "json-schema.org/draft/2020-12/schema": DRAFT_2020_12,
    "json-schema.org/draft-07/schema": DRAFT_07,
}
_ONLY_2020_12: Final = frozenset(
    {"prefixItems", "dependentRequired", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties",
     "minContains", "maxContains", "$dynamicRef"}
)  # fmt: skip
_ONLY_DRAFT_07: Final = frozenset({"additionalItems", "dependencies"})
_IN_PLACE: Final = ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")
_EVALUATES_BESIDE: Final = frozenset({"$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "$dynamicRef"})


def read(raw: Any) -> Document:
    """The document in normal form. Raises CannotTell with the reason and the place when it cannot be compared."""
    dialect = _dialect(raw)
    try:
        return _Reader(raw, dialect or DRAFT_2020_12, guess=dialect is None).read()
    except _IsDraft07:
        return _Reader(raw, DRAFT_07, guess=True).read()


class _IsDraft07(Exception):
    """A document without `$schema` uses a word that only draft-07 knows."""


def _dialect(raw: Any) -> str | None:
    if not isinstance(raw, dict | bool):
        raise CannotTell(f"a schema is an object or a boolean, not {type(raw).__name__}")
    if isinstance(raw, bool) or "$schema" not in raw:
        return None
    named = raw["$schema"]
    plain = re.sub(r"^https?://", "", named).rstrip("#") if isinstance(named, str) else ""
    if plain not in _DIALECTS:
        raise CannotTell(f"$schema {named!r} is not compared; write the schema in draft 2020-12 or draft-07")
    return _DIALECTS[plain]


class _Reader:
    """Reads one document; a work list instead of recursion."""

    def __init__(self, raw: Any, dialect: str, *, guess: bool) -> None:
        self.raw = raw
        self.dialect = dialect
        self.guess = guess
        self.nodes: dict[int, Node] = {}
        self.todo: list[tuple[Node, str]] = []
        self.refs: list[tuple[Node, str, str]] = []
        self.anchors: dict[str, Node] = {}
        self.inner_ids: list[str] = []
        self.fresh: list[Node] = []
        self.at = "#"

    def read(self) -> Document:
        root = self.node(self.raw, "#")
        done = 0
        while self.todo or done < len(self.refs):
            while self.todo:
                node, self.at = self.todo.pop()
                try:
                    self.keywords(node, node.raw)
                except CannotTell as refused:
                    raise CannotTell(refused.why, self.at) from None
            for node, target, at in self.refs[done:]:
                node.words["$ref"] = self.resolve(target, at)
                done += 1
        if self.inner_ids and self.refs:
            raise CannotTell(
                "an inner $id changes what $ref means; move it to the root or remove it", self.inner_ids[0]
            )
        for node in list(self.nodes.values()):
            _fold_unevaluated(node)
        _refuse_endless(root, [*self.nodes.values(), *self.fresh])
        for node in list(self.nodes.values()):
            _shorten(node)
        plain = all(target.startswith(("#/$defs/", "#/definitions/")) for _, target, _ in self.refs)
        return Document(self.raw, root, self.dialect, plain)

    def node(self, raw: Any, at: str) -> Node:
        if isinstance(raw, bool):
            fresh = Node(raw, {} if raw else {"false": True})
            self.fresh.append(fresh)
            return fresh
        if not isinstance(raw, dict):
            raise CannotTell(f"a schema is an object or a boolean, not {type(raw).__name__}", at)
        known = self.nodes.get(id(raw))
        if known is None:
            known = self.nodes[id(raw)] = Node(raw, {})
            if len(self.nodes) > MAX_NODES:
                raise CannotTell(f"more than {MAX_NODES} schemas in one document; split it", at)
            if len(at) > MAX_PLACE_CHARS:
                raise CannotTell("the document is nested too deeply; split it", at[:100] + "...")
            self.todo.append((known, at))
        return known

    def resolve(self, target: str, at: str) -> Node:
        own = self.raw.get("$id") if isinstance(self.raw, dict) else None
        base, _, fragment = target.partition("#")
        if base and base != (own or "").rstrip("#"):
            raise CannotTell(f"$ref {target!r} leaves the document; bring the schema in under $defs", at)
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            if fragment not in self.anchors:
                raise CannotTell(f"$ref {target!r} names no anchor of this document", at)
            return self.anchors[fragment]
        found: Any = self.raw
        for part in fragment.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isdecimal() and len(name) < 9 and int(name) < len(found):
                found = found[int(name)]
            else:
                raise CannotTell(f"$ref {target!r} points to nothing", at)
        return self.node(found, "#" + fragment)

    def keywords(self, node: Node, raw: dict[str, Any]) -> None:
        at, words = self.at, node.words
        self.identity(node, raw)
        if "$ref" in raw:
            if not isinstance(raw["$ref"], str):
                raise CannotTell("$ref is a string")
            self.refs.append((node, raw["$ref"], at))
            words["$ref"] = None
            if self.dialect == DRAFT_07:  # there, $ref stands alone: what is beside it does not count
                return
        for word, value in raw.items():
            if not isinstance(word, str):
                raise CannotTell("the name of a member is a string")
            if self.dialect == DRAFT_2020_12 and self.is_of_draft_07(word, value):
                continue
            if self.dialect == DRAFT_07 and word in _ONLY_2020_12:
                if self.guess:
                    raise CannotTell(f"`{word}` is of 2020-12, other words are of draft-07; say which with $schema")
                continue
            read = READERS.get(word)
            if read is not None:
                read(self, words, word, value)
        self.after(raw, words)

    def identity(self, node: Node, raw: dict[str, Any]) -> None:
        inner = raw.get("$id")
        if isinstance(inner, str) and raw is not self.raw:
            if self.dialect == DRAFT_07 and inner.startswith("#"):
                self.anchors[inner[1:]] = node
            elif "$ref" not in raw or self.dialect != DRAFT_07:
                self.inner_ids.append(self.at)
        for word in ("$anchor", "$dynamicAnchor"):
            if isinstance(raw.get(word), str) and self.dialect == DRAFT_2020_12:
                self.anchors[raw[word]] = node
        if raw is not self.raw and "$schema" in raw and _dialect(raw) != self.dialect:
            raise CannotTell("an inner $schema names another dialect")
        for word in ("$defs", "definitions"):
            if isinstance(raw.get(word), dict):
                for name, inner_raw in raw[word].items():
                    self.node(inner_raw, f"{self.at}/{word}/{name}")

    def is_of_draft_07(self, word: str, value: Any) -> bool:
        """True for a word that 2020-12 does not know; without a `$schema` the document is read again as draft-07."""
        tuple_items = word == "items" and isinstance(value, list)
        if not tuple_items and word not in _ONLY_DRAFT_07:
            return False
        if self.guess:
            raise _IsDraft07
        if tuple_items:
            raise CannotTell("`items` is a list, which 2020-12 calls prefixItems")
        return True

    def after(self, raw: dict[str, Any], words: dict[str, Any]) -> None:
        """What follows from several words together."""
        if self.dialect == DRAFT_07 and isinstance(raw.get("items"), list) and "additionalItems" in raw:
            words["items"] = self.node(raw["additionalItems"], f"{self.at}/additionalItems")
        if "if" not in words or not {"then", "else"} & words.keys():
            for word in ("if", "then", "else"):
                words.pop(word, None)
        if "contains" not in words:
            words.pop("minContains", None)
            words.pop("maxContains", None)
        if words.get("open") and "enum" not in words:
            del words["open"]


def _fold_unevaluated(node: Node) -> None:
    """`unevaluated*` beside no applicator means what `additionalProperties` and `items` mean; else it stays."""
    words = node.words
    for word, plain in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
        if word not in words:
            continue
        if plain in words:  # everything is evaluated already
            del words[word]
        elif not _EVALUATES_BESIDE & words.keys() and not (plain == "items" and "contains" in words):
            words[plain] = words.pop(word)


def _shorten(node: Node) -> None:
    """A reference to a mere reference goes to the end of the chain at once."""
    chain = []
    while node.words.keys() == {"$ref"}:
        chain.append(node)
        node = node.words["$ref"]
    for link in chain:
        link.words["$ref"] = node


def _in_place(node: Node) -> Iterator[Node]:
    for word in _IN_PLACE:
        if word in node.words:
            yield from nodes_in(node.words[word])


def _refuse_endless(root: Node, nodes: list[Node]) -> None:
    """A schema that applies itself to the same value has no meaning: validators never end on it."""
    done: set[int] = set()
    for start in [root, *nodes]:
        path: set[int] = set()
        stack = [(start, _in_place(start))] if id(start) not in done else []
        if stack:
            path.add(id(start))
        while stack:
            node, rest = stack[-1]
            child = next(rest, None)
            if child is None:
                stack.pop()
                path.discard(id(node))
                done.add(id(node))
            elif id(child) in path:
                raise CannotTell("a $ref comes back to itself without going into a property or an item")
            elif id(child) not in done:
                path.add(id(child))
                stack.append((child, _in_place(child)))
