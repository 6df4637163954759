"""Sight: the registry as one asker may see it. What it may not call is not there (SEC-2, REG-3).

Every answer is made of what is left, so that the answer about a forbidden capability is the one about an absent one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from bus.calls.announcement import Announcement
from bus.calls.card import Card
from bus.calls.index import Index, Offer, Registered
from bus.trust.rules import RuleSet


class Seen(Protocol):
    """What a call looks its capability up in: the index, or what somebody sees of it."""

    def offers(self, name: str) -> tuple[Offer, ...]:
        """Who offers a capability now."""
        ...

    def instances(self, agent: str) -> list[str]:
        """The live replicas of an agent."""
        ...

    def nearest(self, name: str) -> list[str]:
        """Offered names that `name` was probably meant for."""
        ...


class Sight:
    """An index through the rules, for `askers`: who asks, and all on whose behalf it does."""

    __slots__ = ("_askers", "_index", "_rules")

    def __init__(self, index: Index, rules: RuleSet, askers: Sequence[str]) -> None:
        self._index = index
        self._rules = rules
        self._askers = askers

    def offers(self, name: str) -> tuple[Offer, ...]:
        """As `Index.offers`."""
        return tuple(offer for offer in self._index.offers(name) if self._shows(offer.agent, offer.card))

    def find(
        self, *, prefix: str = "", agent: str | None = None, where: Callable[[Card], bool] | None = None
    ) -> Iterator[Offer]:
        """As `Index.find`."""
        for offer in self._index.find(prefix=prefix, agent=agent):
            if self._shows(offer.agent, offer.card) and (where is None or where(offer.card)):
                yield offer

    def instances(self, agent: str) -> list[str]:
        """As `Index.instances`; none of an agent of which nothing is seen."""
        found = self._index.registered_as(agent)
        return [] if found is None or self._part(found) is None else self._index.instances(agent)

    def nearest(self, name: str) -> list[str]:
        """As `Index.nearest`."""
        return self._index.nearest(name, is_offered=lambda known: bool(self.offers(known)))

    def registered(self) -> list[Registered]:
        """As `Index.registered`, without what is not seen."""
        return [part for found in self._index.registered() if (part := self._part(found)) is not None]

    def _shows(self, agent: str, card: Card) -> bool:
        return self._rules.permits(self._askers, card.name, agent, sensitive=card.sensitive)

    def _part(self, found: Registered) -> Registered | None:
        seen = tuple(self._cut(announcement) for announcement in found.announcements)
        return replace(found, announcements=seen) if any(one.cards for one in seen) else None

    def _cut(self, announcement: Announcement) -> Announcement:
        cards = tuple(card for card in announcement.cards if self._shows(announcement.agent, card))
        return replace(announcement, cards=cards, skipped=())
