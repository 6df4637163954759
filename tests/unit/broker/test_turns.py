"""Turns between lanes (DEL-8)."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from bus.broker.turns import KEYS, PATIENCE, Turns, group_of

GROUPS = ["high", "normal", KEYS, "due", "low"]


def play(backlog: dict[str, int], room: int) -> list[str]:
    """Lets the groups give what they have, `room` at a time, and returns the groups in the order of messages."""
    turns, left, taken = Turns(), dict(backlog), list[str]()
    for group in left:
        turns.add(group)
    while any(left.values()):
        free, asked = room, dict[str, int]()
        for turn in turns.order():
            if not free:
                break
            gives = min(left[turn.group], 1 if turn.is_one_only else free)
            asked[turn.group] = gives
            left[turn.group] -= gives
            free -= gives
            taken += [turn.group] * gives
        turns.took(asked)
    return taken


@given(st.dictionaries(st.sampled_from(GROUPS), st.integers(1, 120), min_size=1), st.integers(1, 20))
def test_nobody_waits_for_ever_and_nothing_is_skipped(backlog: dict[str, int], room: int) -> None:
    taken = play(backlog, room)
    assert Counter(taken) == Counter(backlog)
    for group in backlog:
        first = taken.index(group)
        assert first <= PATIENCE + len(GROUPS) * room


def test_the_order_of_a_backlog() -> None:
    taken = play({"low": 50, "normal": 50, "high": 50}, 1)
    assert taken[:15] == ["high"] * 15
    assert Counter(taken[:33]) == Counter(high=29, normal=2, low=2)
    assert taken[-1] == "low"


def test_lanes_of_one_rank_share() -> None:
    taken = play({"normal": 20, KEYS: 20, "due": 20}, 1)
    assert Counter(taken[:30]) == Counter({"normal": 10, KEYS: 10, "due": 10})


def test_key_lanes_take_turns_together() -> None:
    assert [group_of(lane) for lane in ("key-00", "key-15", "normal", "high")] == [KEYS, KEYS, "normal", "high"]
