"""Phases: the steps of a workflow as it declares them, in order, with how many may work in each at once (WF-1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_NAME_CHARS = 128


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase. `limit`: how many slots of it there are for each key, such as one writer for each document.

    Raises ValueError for an empty or overlong name, and for a limit below 1.
    """

    name: str
    limit: int | None = None

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= MAX_NAME_CHARS:
            raise ValueError(f"a phase has a name of 1 to {MAX_NAME_CHARS} characters, this one has {len(self.name)}")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"the limit of phase {self.name!r} is {self.limit}, it must be at least 1")


class Phases:
    """Phases in their order: each may begin only when the one before it has ended, and may begin again later.

    `Phases(["plan", Phase("draft", limit=1), "review"])`. Raises ValueError for a name that stands there twice.
    """

    __slots__ = ("_by_name", "order")

    def __init__(self, phases: Iterable[str | Phase] = ()) -> None:
        self.order: Sequence[Phase] = tuple(Phase(one) if isinstance(one, str) else one for one in phases)
        self._by_name = {one.name: one for one in self.order}
        if len(self._by_name) < len(self.order):
            raise ValueError(f"a phase stands twice in {[one.name for one in self.order]}")

    def get(self, name: str) -> Phase | None:
        """The phase of a name; None for one that is not declared."""
        return self._by_name.get(name)

    def before(self, name: str) -> str | None:
        """The phase that must have ended before this one begins; None for the first, and for one not declared."""
        names = [one.name for one in self.order]
        place = names.index(name) if name in names else 0
        return names[place - 1] if place else None

    def to_wire(self) -> list[dict[str, str | int | None]]:
        """As it stands in the record."""
        return [{"name": one.name, "limit": one.limit} for one in self.order]
