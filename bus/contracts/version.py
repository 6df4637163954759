"""Versions of contracts: `draft_request@2.1`, on the wire, on a model, on a handler."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple, Self

from pydantic import BaseModel

ATTRIBUTE = "__contract__"
Number = tuple[int, int]
"""Major and minor."""

_NUMBER = "(0|[1-9][0-9]{0,5})"
_CONTRACT = re.compile(rf"([a-z][a-z0-9_]{{0,63}})@{_NUMBER}\.{_NUMBER}")
_VERSION = re.compile(rf"{_NUMBER}\.{_NUMBER}")


def parse_version(text: str) -> Number | None:
    """`2.1` as (2, 1); None for anything else, such as `2`, `02.1` or `2.1.0`."""
    found = _VERSION.fullmatch(text)
    return (int(found[1]), int(found[2])) if found else None


def show_version(number: Number) -> str:
    """(2, 1) as `2.1`."""
    return f"{number[0]}.{number[1]}"


class ContractVersion(NamedTuple):
    """A payload's contract: message type, major and minor. `str` gives `draft_request@2.1`."""

    type: str
    major: int
    minor: int

    @classmethod
    @lru_cache(maxsize=4096)  # A bus has few contracts and many messages.
    def parse(cls, text: str) -> Self:
        """Reads `type@major.minor`. Raises ValueError that says what it should look like."""
        found = _CONTRACT.fullmatch(text)
        if found is None:
            raise ValueError(
                f"{text!r} is not a contract such as draft_request@2.1: message type, @, major, dot, minor"
            )
        return cls(found[1], int(found[2]), int(found[3]))

    @classmethod
    def of_type(cls, type: str, version: str) -> Self:
        """Reads `major.minor` for one message type. Raises ValueError."""
        number = parse_version(version)
        if number is None:
            raise ValueError(f"version {version!r} of {type!r} is not major.minor, such as 2.1")
        return cls(type, *number)

    def __str__(self) -> str:
        return f"{self.type}@{self.major}.{self.minor}"


@lru_cache(maxsize=4096)
def version_of(model: type[BaseModel]) -> ContractVersion | None:
    """The contract that a model says it is, by its own class attribute `__contract__ = "draft_request@2.1"`.

    None without one; a subclass is another model and does not inherit it. Raises ValueError for another value.
    """
    text = vars(model).get(ATTRIBUTE)
    if text is None:
        return None
    try:
        return ContractVersion.parse(text)
    except (TypeError, ValueError) as problem:
        raise ValueError(f"{model.__qualname__}.{ATTRIBUTE}: {problem}") from None
