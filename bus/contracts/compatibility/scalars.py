"""Does what a writer sends keep a reader's keyword? The keywords of every type, of numbers and of strings."""

from __future__ import annotations

from typing import Any, Final

from .clause import Clause, View, at_least
from .goals import Prover, Why, entry, wrote
from .values import shown

TEXT_COUNTS: Final = ("minLength", "maxLength")


def check_type(prover: Prover, clause: Clause, reader: View, word: str, asked: frozenset[str]) -> list[Why]:
    """`type`: every type that is left to the writer is one of the reader's."""
    extra = {
        name
        for name in clause.types - asked
        if not (name == "integer" and "number" in asked)
        and not (name == "number" and "integer" in asked and _whole(clause))
    }
    return [_why(clause, reader, word)] if extra else []


def _whole(clause: Clause) -> bool:
    return clause.multiple is not None and clause.multiple % 1 == 0


def check_values(prover: Prover, clause: Clause, reader: View, word: str, asked: Any) -> list[Why]:
    """`enum` and `const`, where the writer's values are no short list: only an open enum takes them."""
    return [_why(clause, reader, word)]


def check_bound(prover: Prover, clause: Clause, reader: View, word: str, asked: Any) -> list[Why]:
    """`minimum`, `maximum` and their exclusive forms."""
    if not clause.types & {"number", "integer"}:
        return []
    lower = word in ("minimum", "exclusiveMinimum")
    known = clause.lowest() if lower else clause.highest()
    if at_least(known, (asked, word.startswith("exclusive")), 1 if lower else -1):
        return []
    return [_why(clause, reader, word)]


def check_multiple(prover: Prover, clause: Clause, reader: View, word: str, asked: Any) -> list[Why]:
    """`multipleOf`, exactly: 0.01 is a hundredth."""
    if not clause.types & {"number", "integer"}:
        return []
    step = clause.step()
    return [] if step is not None and step % asked == 0 else [_why(clause, reader, word)]


def check_length(prover: Prover, clause: Clause, reader: View, word: str, asked: int) -> list[Why]:
    """`minLength` and `maxLength`."""
    if "string" not in clause.types:
        return []
    if word == "minLength":
        kept = clause.min_length >= asked
    else:
        kept = clause.max_length is not None and clause.max_length <= asked
    return [] if kept else [_why(clause, reader, word)]


def check_equal(prover: Prover, clause: Clause, reader: View, word: str, asked: Any) -> list[Why]:
    """`pattern`, `format` and `content*` are compared by equality alone: two that differ may mean anything."""
    if not clause.types & ({"string"} if word == "pattern" else {"string", "number", "integer"}):
        return []
    return [] if (word, asked) in clause.equals else [_why(clause, reader, word)]


def check_unsupported(prover: Prover, clause: Clause, reader: View, word: str, asked: Any) -> list[Why]:
    """What is not compared holds only where the writer has the very same schema (which was looked at before)."""
    if not clause.types & _CONCERNS.get(word, clause.types):
        return []
    return [Why((), word, wrote(clause, word), entry(reader[0], word), f"`{word}` is not compared", unsure=True)]


_CONCERNS: Final = {"unevaluatedProperties": frozenset({"object"}), "unevaluatedItems": frozenset({"array"})}


def _why(clause: Clause, reader: View, word: str) -> Why:
    return Why((), word, wrote(clause, word), entry(reader[0], word))


def listed(values: list[Any]) -> str:
    """The first few values, for a person."""
    more = f" and {len(values) - 3} more" if len(values) > 3 else ""
    return ", ".join(shown(value) if value is not None else "null" for value in values[:3]) + more
