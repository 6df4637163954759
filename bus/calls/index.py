"""The index: who offers what, in memory; pure, fed by the directory (REG-3)."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bus.calls.announcement import Announcement, Lease
from bus.calls.card import Card

MAX_NEAREST = 3
MAX_COMPARED = 500


@dataclass(frozen=True, slots=True)
class Offer:
    """One capability as one agent offers it, and the replicas that do; another card of that agent is another offer."""

    agent: str
    card: Card
    instances: tuple[str, ...]
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Registered:
    """One agent as the registry knows it: its live replicas, and what they offer."""

    agent: str
    leases: tuple[Lease, ...]
    announcements: tuple[Announcement, ...]


class Index:
    """Leases and announcements by agent. A lookup is a look into a dict; times are monotonic seconds."""

    __slots__ = ("_announcements", "_leases", "_names", "_offers")

    def __init__(self) -> None:
        self._leases: dict[str, dict[str, tuple[Lease, float]]] = {}
        self._announcements: dict[str, dict[str, Announcement]] = {}
        self._names: dict[str, set[str]] = {}
        self._offers: dict[str, tuple[Offer, ...]] = {}

    def announce(self, digest: str, announcement: Announcement) -> None:
        """Takes an announcement; it counts while a lease names it."""
        self._announcements.setdefault(announcement.agent, {})[digest] = announcement
        for card in announcement.cards:
            self._names.setdefault(card.name, set()).add(announcement.agent)
        self._changed(announcement.agent)

    def forget(self, agent: str, digest: str) -> None:
        """Drops an announcement."""
        dropped = self._announcements.get(agent, {}).pop(digest, None)
        if dropped is None:
            return
        self._changed(agent, dropped)
        kept = {card.name for one in self._announcements[agent].values() for card in one.cards}
        for name in {card.name for card in dropped.cards} - kept:
            agents = self._names[name]
            agents.discard(agent)
            if not agents:
                del self._names[name]
        if not self._announcements[agent]:
            del self._announcements[agent]

    def renew(self, lease: Lease, ends_at: float) -> None:
        """Takes a new or renewed lease, which counts until `ends_at`."""
        leases = self._leases.setdefault(lease.agent, {})
        before = leases.get(lease.instance)
        leases[lease.instance] = (lease, ends_at)
        if before is None or before[0].announcement != lease.announcement:
            self._changed(lease.agent)

    def end(self, agent: str, instance: str) -> None:
        """Drops a replica at once."""
        leases = self._leases.get(agent, {})
        if leases.pop(instance, None) is not None:
            self._changed(agent)
            if not leases:
                del self._leases[agent]

    def late(self, now: float) -> list[Lease]:
        """The leases that have run out."""
        return [lease for leases in self._leases.values() for lease, ends_at in leases.values() if ends_at <= now]

    def expire(self, now: float) -> list[Lease]:
        """Drops the replicas whose leases have run out, and returns them."""
        late = self.late(now)
        for lease in late:
            self.end(lease.agent, lease.instance)
        return late

    def spare(self, now: float) -> None:
        """Lets every lease count for at least two heartbeats from now."""
        for leases in self._leases.values():
            for instance, (lease, ends_at) in leases.items():
                leases[instance] = (lease, max(ends_at, now + 2 * lease.heartbeat_s))

    def offers(self, name: str) -> tuple[Offer, ...]:
        """Who offers a capability now, by agent and version; empty when nobody does."""
        found = self._offers.get(name)
        if found is None:
            found = tuple(offer for agent in sorted(self._names.get(name, ())) for offer in self._of(agent, name))
            # Only what somebody has announced is kept: asking for names must not fill the memory.
            if name in self._names:
                self._offers[name] = found
        return found

    def find(
        self, *, prefix: str = "", agent: str | None = None, where: Callable[[Card], bool] | None = None
    ) -> Iterator[Offer]:
        """The offers whose name begins with `prefix`, of one agent, for whose card `where` holds; sorted by name."""
        for name in sorted(self._names):
            if name.startswith(prefix):
                for offer in self.offers(name):
                    if agent in (None, offer.agent) and (where is None or where(offer.card)):
                        yield offer

    def instances(self, agent: str) -> list[str]:
        """The replicas of an agent that hold a lease."""
        return list(self._leases.get(agent, ()))

    def registered(self) -> list[Registered]:
        """Every agent with a live replica, by name."""
        return [found for agent in sorted(self._leases) if (found := self.registered_as(agent)) is not None]

    def registered_as(self, agent: str) -> Registered | None:
        """One agent; None when it has no live replica."""
        leases = tuple(lease for lease, _ in self._leases.get(agent, {}).values())
        if not leases:
            return None
        named = {lease.announcement for lease in leases}
        known = self._announcements.get(agent, {})
        return Registered(agent, leases, tuple(one for digest, one in known.items() if digest in named))

    def nearest(self, name: str, *, is_offered: Callable[[str], bool] | None = None) -> list[str]:
        """Up to three offered names that `name` was probably meant for, of those that count as offered."""
        is_offered = is_offered or (lambda known: bool(self.offers(known)))
        parts = set(name.split("."))
        close = [
            known
            for known in self._names
            if (not parts.isdisjoint(known.split(".")) or (abs(len(known) - len(name)) <= 3 and known[:2] == name[:2]))
            and is_offered(known)
        ]
        return difflib.get_close_matches(name[:128], close[:MAX_COMPARED], n=MAX_NEAREST, cutoff=0.5)

    def _of(self, agent: str, name: str) -> Iterator[Offer]:
        leases = self._leases.get(agent, {}).values()
        for digest, announcement in self._announcements.get(agent, {}).items():
            instances = tuple(lease.instance for lease, _ in leases if lease.announcement == digest)
            if instances:
                for card in announcement.cards:
                    if card.name == name:
                        yield Offer(agent, card, instances, announcement.versions)

    def _changed(self, agent: str, dropped: Announcement | None = None) -> None:
        known = [*self._announcements.get(agent, {}).values(), *([dropped] if dropped else [])]
        for announcement in known:
            for card in announcement.cards:
                self._offers.pop(card.name, None)
