"""Causes: the forest that messages make by naming what caused them.

Strangers may claim any cause: one that nobody knows, the message itself, a circle, a chain without end in sight. The
work is linear in the number of messages, and nothing here recurses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bus.envelope import Envelope


@dataclass(frozen=True, slots=True)
class Forest:
    """By index of the message: its parent and its depth. `order` has parents before children, siblings as given.

    `missing` are roots whose cause is not known, `cut` roots whose causes lead back to themselves.
    """

    parents: tuple[int | None, ...]
    depths: tuple[int, ...]
    order: tuple[int, ...]
    missing: frozenset[int]
    cut: frozenset[int]


def forest(envelopes: Sequence[Envelope], agents: Sequence[str]) -> Forest:
    """Links messages, given in the order of time, to what caused them. `agents` received them, `*` for all."""
    by_id: dict[str, int] = {}
    by_receiver: dict[tuple[str, str], int] = {}
    for index, envelope in enumerate(envelopes):
        by_id.setdefault(envelope.message_id, index)
        by_receiver.setdefault((envelope.message_id, agents[index]), index)
    parents: list[int | None] = []
    missing: set[int] = set()
    for index, envelope in enumerate(envelopes):
        cause = envelope.causation_id
        parent = None
        if cause is not None:
            # Two senders may use one id; who handled the cause is who sends.
            parent = by_receiver.get((cause, envelope.sender), by_id.get(cause))
            if parent is None:
                missing.add(index)
        parents.append(parent)
    cut = _circles(parents)
    for index in cut:
        parents[index] = None
    order, depths = _walk(parents)
    return Forest(tuple(parents), depths, order, frozenset(missing), cut)


def _circles(parents: Sequence[int | None]) -> frozenset[int]:
    """One message of every circle: the one at which the oldest message that leads into it meets it."""
    cut: set[int] = set()
    settled = [False] * len(parents)
    for start in range(len(parents)):
        path: set[int] = set()
        current: int | None = start
        while current is not None and not settled[current]:
            if current in path:
                cut.add(current)
                break
            path.add(current)
            current = parents[current]
        for index in path:
            settled[index] = True
    return frozenset(cut)


def _walk(parents: Sequence[int | None]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    children: list[list[int]] = [[] for _ in parents]
    roots = []
    for index, parent in enumerate(parents):
        if parent is None:
            roots.append(index)
        else:
            children[parent].append(index)
    depths = [0] * len(parents)
    order = []
    waiting = roots[::-1]
    while waiting:
        index = waiting.pop()
        order.append(index)
        for child in reversed(children[index]):
            depths[child] = depths[index] + 1
            waiting.append(child)
    return tuple(order), tuple(depths)
