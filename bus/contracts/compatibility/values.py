"""JSON values: equality as JSON Schema means it, exact numbers, and a short form for people."""

from __future__ import annotations

import json
from collections.abc import Hashable
from fractions import Fraction
from itertools import islice
from typing import Any, Final

MAX_VALUE_DEPTH: Final = 64
MAX_SHOWN_CHARS: Final = 100
MAX_PRINTED_DEPTH: Final = 32
MAX_PRINTED_VALUES: Final = 2_000


class CannotTell(Exception):
    """The comparison ends without an answer, which counts as breaking; `path` is where, `why` is one line."""

    def __init__(self, why: str, path: str = "$") -> None:
        super().__init__(why)
        self.why = why
        self.path = path


def is_number(value: Any) -> bool:
    """True for what JSON calls a number (a Python bool is none)."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def exact(number: int | float) -> int | Fraction:
    """The number as it is written: 0.1 is a tenth, 1.0 is 1. Raises CannotTell for NaN and infinity."""
    if isinstance(number, int):
        return number
    if number != number or number in (float("inf"), float("-inf")):
        raise CannotTell(f"{number} is not a JSON number")
    value = Fraction(repr(number))
    return value.numerator if value.denominator == 1 else value


def key(value: Any, depth: int = 0) -> Hashable:
    """Equal for equal JSON values: 1 and 1.0 are one, true and 1 are two, members of objects have no order.

    Raises CannotTell for a value nested deeper than MAX_VALUE_DEPTH, or for what is not JSON.
    """
    if value is None or isinstance(value, bool):
        return ("word", value)
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return ("number", exact(value))
    if depth >= MAX_VALUE_DEPTH:
        raise CannotTell(f"a value is nested deeper than {MAX_VALUE_DEPTH}")
    if isinstance(value, list | tuple):
        return ("array", tuple([key(item, depth + 1) for item in value]))
    if isinstance(value, dict):
        return ("object", frozenset([(name, key(item, depth + 1)) for name, item in value.items()]))
    raise CannotTell(f"a {type(value).__name__} is not a JSON value")


def type_of(value: Any) -> str:
    """The JSON Schema type of a value; `integer` for every number without a fraction, so for 1.0 too."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(exact(value), int) else "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list | tuple) else "object"


def bounded(value: Any) -> Any:
    """The value for a report: itself, or a short text where it is too large or too deep to be printed."""
    left = MAX_PRINTED_VALUES
    level: list[Any] = [value]
    for _ in range(MAX_PRINTED_DEPTH):
        left -= len(level)
        if left < 0:
            break
        inner = [item for item in level if isinstance(item, dict | list | tuple)]
        level = [item for one in inner for item in islice(one.values() if isinstance(one, dict) else one, left + 1)]
        if not level:
            return value
    return f"(a large {type_of(value)}) {shown(value)}"


def shown(value: Any) -> str:
    """The value as JSON on one line, cut after MAX_SHOWN_CHARS; `nothing` for None."""
    if value is None:
        return "nothing"
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (RecursionError, ValueError):
        text = f"a deeply nested {type_of(value)}"
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 3] + "..."
