"""The index: who offers what, at what speed, and what hostile records do to it (REG-2, REG-3)."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus import Card
from bus.calls.announcement import Announcement, Lease
from bus.calls.index import Index


def card(name: str, **fields: Any) -> Card:
    return Card.read({"name": name, "description": "x", "input_schema": {"type": "object"}, **fields})


def lease(agent: str, instance: str, digest: str) -> Lease:
    return Lease(agent, instance, digest, 15, 120, "2026-01-31T09:30:00Z")


def registered(index: Index, agent: str, *cards: Card, instance: str = "i1", ends_at: float = 100.0) -> str:
    announcement = Announcement(agent, ("1.2",), cards)
    digest, _ = announcement.encode()
    index.announce(digest, announcement)
    index.renew(lease(agent, instance, digest), ends_at)
    return digest


def test_replicas_of_two_versions_are_two_offers() -> None:
    index = Index()
    registered(index, "alice", card("a.b"), instance="old")
    registered(index, "alice", card("a.b", version="2.0.0"), instance="new")
    assert {(one.card.version, one.instances) for one in index.offers("a.b")} == {
        ("1.0.0", ("old",)), ("2.0.0", ("new",)),
    }  # fmt: skip
    index.end("alice", "old")
    assert [one.card.version for one in index.offers("a.b")] == ["2.0.0"]


def test_a_lease_that_runs_out_takes_the_offer_with_it() -> None:
    index = Index()
    registered(index, "alice", card("a.b"), ends_at=100.0)
    assert index.offers("a.b")
    assert index.expire(99.0) == []
    assert [one.instance for one in index.expire(100.0)] == ["i1"]
    assert index.offers("a.b") == ()
    assert index.registered() == []


def test_an_announcement_may_come_after_its_lease_and_go_before_it() -> None:
    index = Index()
    announcement = Announcement("alice", ("1.2",), (card("a.b"),))
    digest, _ = announcement.encode()
    index.renew(lease("alice", "i1", digest), 100.0)
    assert index.offers("a.b") == ()
    index.announce(digest, announcement)
    assert index.offers("a.b")
    index.forget("alice", digest)
    assert index.offers("a.b") == ()


def test_names_are_found_by_prefix_filter_and_nearness() -> None:
    index = Index()
    registered(index, "alice", card("calculator.add", idempotent=True), card("calculator.sub"), card("echo.repeat"))
    assert [one.card.name for one in index.find(prefix="calculator.")] == ["calculator.add", "calculator.sub"]
    assert [one.card.name for one in index.find(where=lambda one: one.idempotent)] == ["calculator.add"]
    assert list(index.find(agent="bob")) == []
    assert index.nearest("calculator.ad")[0] == "calculator.add"
    assert index.nearest("zzz.zzz") == []


def test_ten_thousand_capabilities_of_a_thousand_agents_are_read_in_under_two_seconds() -> None:
    records = []
    for number in range(1000):
        cards = tuple(card(f"family_{number}.tool_{one}") for one in range(10))
        agent = f"agent_{number}"
        digest, data = Announcement(agent, ("1.2",), cards).encode()
        records.append((agent, digest, data, lease(agent, "i", digest).encode()))
    index = Index()
    started = time.process_time()
    for agent, digest, data, held in records:
        index.announce(digest, Announcement.decode(agent, digest, data))
        index.renew(Lease.decode(agent, "i", held), 1.0)
    assert time.process_time() - started < 2
    assert len(list(index.find())) == 10_000
    started = time.process_time()
    for number in range(1000):
        assert index.offers(f"family_{number}.tool_5")
    assert (time.process_time() - started) / 1000 < 50e-6


@given(
    st.one_of(
        st.binary(), st.recursive(st.none() | st.integers(-(2**53), 2**53) | st.text("ab"), st.lists).map(orjson.dumps)
    )
)
def test_garbage_is_refused_as_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        Announcement.decode("alice", "0" * 64, data)
    with pytest.raises(ValueError):
        Lease.decode("alice", "i", data)


def test_a_bad_card_is_left_out_and_told() -> None:
    _, data = Announcement("alice", ("1.2",), (card("a.b"),)).encode()
    record = orjson.loads(data)
    record["cards"].append({"name": "NO"})
    data = orjson.dumps(record)
    read = Announcement.decode("alice", hashlib.sha256(data).hexdigest(), data)
    assert [one.name for one in read.cards] == ["a.b"]
    assert len(read.skipped) == 1
