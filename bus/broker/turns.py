"""Turns: which lane is asked next. Pure: who was passed over in, an order out."""

from __future__ import annotations

from typing import NamedTuple

from bus.broker.subjects import is_key_lane

# A lane is passed over by at most this many messages of others before it has the first turn once.
PATIENCE = 15
KEYS = "keys"

_RANKS = {"high": 0, "low": 2}
_MIDDLE = 1


class Turn(NamedTuple):
    """A group of lanes: one, or `keys` for all key lanes. `is_one_only`: it comes before its rank, for one message."""

    group: str
    is_one_only: bool


def group_of(lane: str) -> str:
    """The group that a lane takes its turns in."""
    return KEYS if is_key_lane(lane) else lane


class Turns:
    """High before normal before low; what waited too long comes first, once. Lanes of one rank take turns."""

    __slots__ = ("_passed",)

    def __init__(self) -> None:
        self._passed: dict[str, int] = {}

    def add(self, group: str) -> None:
        """Takes a group in; does nothing for one that is known."""
        self._passed.setdefault(group, 0)

    def order(self) -> list[Turn]:
        """All groups, in the order in which to ask them."""
        return [
            Turn(group, passed >= PATIENCE and _rank(group) > 0)
            for group, passed in sorted(
                self._passed.items(), key=lambda one: (one[1] < PATIENCE, _rank(one[0]), -one[1], one[0])
            )
        ]

    def took(self, asked: dict[str, int]) -> None:
        """Hears how many messages each group that was asked gave; the others were passed over by these."""
        total = sum(asked.values())
        for group in self._passed:
            self._passed[group] = 0 if group in asked else self._passed[group] + total


def _rank(group: str) -> int:
    return _RANKS.get(group, _MIDDLE)
