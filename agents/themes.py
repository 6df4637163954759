"""Groups passages by what they talk about: k-means on the angle between TF-IDF vectors, deterministic.

Plain dictionaries and Python floats on purpose: a few hundred passages need no matrix library, and a sum in a
fixed order gives the same groups on every machine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

ITERATIONS = 12
DECIMALS = 9

Vector = Mapping[str, float]


def vectors(texts: Sequence[Iterable[str]]) -> list[dict[str, float]]:
    """Unit TF-IDF vectors of tokenised texts; tokens that only one text has say nothing about groups."""
    counts = [Counter(text) for text in texts]
    spread = Counter(token for count in counts for token in count)
    return [
        _unit(
            {
                token: (1 + math.log(count[token])) * math.log(1 + len(texts) / spread[token])
                for token in sorted(count)
                if spread[token] > 1
            }
        )
        for count in counts
    ]


def likeness(left: Vector, right: Vector) -> float:
    """Cosine of two unit vectors, rounded so that equal means equal."""
    if len(left) > len(right):
        left, right = right, left
    return round(sum(weight * right[token] for token, weight in left.items() if token in right), DECIMALS)


def group(points: Sequence[Vector], weights: Sequence[float], size: int) -> list[list[int]]:
    """At most `size` groups of indices of `points`; together they are all points that fit a group.

    The first centre is the point of the greatest weight, each further one weighs much and is unlike the rest.
    Ties go to the lower index. Points unlike every centre stay out; groups are never empty.
    """
    centres: list[Vector] = [points[index] for index in _spread_out(points, weights, size)]
    groups: list[list[int]] = []
    for _ in range(ITERATIONS):
        assigned = _assign(points, centres)
        if assigned == groups:
            break
        groups = assigned
        centres = [_centre([points[i] for i in group], [weights[i] for i in group]) for group in groups]
    return groups


def _spread_out(points: Sequence[Vector], weights: Sequence[float], size: int) -> list[int]:
    nearest = [0.0] * len(points)
    chosen: list[int] = []
    while len(chosen) < size:
        left = [index for index in range(len(points)) if index not in chosen and points[index]]
        if not left:
            break
        best = max(left, key=lambda index: (round(weights[index] * (1 - nearest[index]), DECIMALS), -index))
        if chosen and nearest[best] >= 1:
            break
        chosen.append(best)
        for index in left:
            nearest[index] = max(nearest[index], likeness(points[index], points[best]))
    return chosen


def _assign(points: Sequence[Vector], centres: Sequence[Vector]) -> list[list[int]]:
    groups: list[list[int]] = [[] for _ in centres]
    for index, point in enumerate(points):
        likes = [likeness(point, centre) for centre in centres]
        best = max(likes, default=0.0)
        if best > 0:
            groups[likes.index(best)].append(index)
    return [group for group in groups if group]


def _centre(members: Sequence[Vector], weights: Sequence[float]) -> Vector:
    total: dict[str, float] = {}
    for member, weight in zip(members, weights, strict=True):
        for token, value in member.items():
            total[token] = total.get(token, 0.0) + value * weight
    return _unit(total)


def _unit(vector: dict[str, float]) -> dict[str, float]:
    length = math.sqrt(sum(value * value for value in vector.values()))
    return {token: value / length for token, value in vector.items()} if length else {}
