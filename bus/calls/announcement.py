"""What an agent writes into the registry: its announcement, and for each replica a lease that names it (REG-1, REG-9).

The announcement is large and seldom changes; the lease is small and renewed every heartbeat. Replicas with the same
cards share one announcement; replicas with other cards have another one, and both are there at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from bus.calls.card import Card
from bus.envelope import is_agent_name
from bus.errors import RegistryError

MAX_BYTES = 900 * 1024
MAX_CARDS = 1000
MAX_TTL_S = 86400.0


@dataclass(frozen=True, slots=True)
class Announcement:
    """The cards of an agent, the envelope versions that it reads, and the payload contracts that it accepts.

    `accepts` maps message types to versions of their contract. `skipped` names cards that could not be read.
    """

    agent: str
    versions: tuple[str, ...]
    cards: tuple[Card, ...]
    accepts: Mapping[str, Any] = field(default_factory=dict, hash=False)
    skipped: tuple[str, ...] = ()

    def encode(self) -> tuple[str, bytes]:
        """The digest and the bytes of the record."""
        record = {
            "agent": self.agent,
            "versions": list(self.versions),
            "cards": [card.to_wire() for card in self.cards],
            "accepts": dict(self.accepts),
        }
        data = orjson.dumps(record, option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(data).hexdigest(), data

    @classmethod
    def decode(cls, agent: str, digest: str, data: bytes) -> Announcement:
        """Reads a record that anybody may have written under `agent` and `digest`; a bad card is left out.

        Raises ValueError that says what is wrong with the record.
        """
        if len(data) > MAX_BYTES:
            raise ValueError(f"it has {len(data)} bytes, the limit is {MAX_BYTES}")
        if hashlib.sha256(data).hexdigest() != digest:
            raise ValueError("its digest is not the one of its key")
        record = _object(data)
        cards, versions, accepts = record.get("cards"), record.get("versions"), record.get("accepts", {})
        if record.get("agent") != agent or not is_agent_name(agent):
            raise ValueError("its agent is not the one of its key")
        if not isinstance(cards, list) or len(cards) > MAX_CARDS or not all(isinstance(one, dict) for one in cards):
            raise ValueError(f"cards is not a list of up to {MAX_CARDS} objects")
        if not isinstance(versions, list) or not _are_texts(versions):
            raise ValueError("versions is not a list of strings")
        if not isinstance(accepts, dict):
            raise ValueError("accepts is not an object")
        read: dict[str, Card] = {}
        skipped = []
        for one in cards:
            try:
                card = Card.read(one)
                read[card.name] = card
            except RegistryError as problem:
                skipped.append(problem.info.message)
        return cls(agent, tuple(versions), tuple(read.values()), accepts, tuple(skipped))


@dataclass(frozen=True, slots=True)
class Lease:
    """One live replica. `announcement` is the digest of what it offers."""

    agent: str
    instance: str
    announcement: str
    heartbeat_s: float
    ttl_s: float
    started_at: str

    def encode(self) -> bytes:
        """The bytes of the record."""
        return orjson.dumps(
            {
                "agent": self.agent,
                "instance": self.instance,
                "announcement": self.announcement,
                "heartbeat_s": self.heartbeat_s,
                "ttl_s": self.ttl_s,
                "started_at": self.started_at,
            }
        )

    @classmethod
    def decode(cls, agent: str, instance: str, data: bytes) -> Lease:
        """Reads a record that anybody may have written. Raises ValueError that says what is wrong with it."""
        record = _object(data[:4096])
        if (record.get("agent"), record.get("instance")) != (agent, instance) or not is_agent_name(agent):
            raise ValueError("its agent and instance are not those of its key")
        times: list[Any] = [record.get("heartbeat_s"), record.get("ttl_s")]
        if not all(type(one) in (int, float) and 0 < one <= MAX_TTL_S for one in times):
            raise ValueError("heartbeat_s and ttl_s are not times")
        texts: list[Any] = [record.get("announcement"), record.get("started_at")]
        if not _are_texts(texts):
            raise ValueError("announcement and started_at are not strings")
        return cls(agent, instance, texts[0], times[0], times[1], texts[1])


def _are_texts(values: Sequence[Any]) -> bool:
    return all(isinstance(one, str) for one in values)


def _object(data: bytes) -> dict[str, Any]:
    try:
        record = orjson.loads(data)
    except orjson.JSONDecodeError as problem:
        raise ValueError(f"it is not JSON: {problem}") from None
    if not isinstance(record, dict):
        raise ValueError("it is not an object")
    return record
