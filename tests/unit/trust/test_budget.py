"""Budgets: expiry, hops and what is inherited (WF-6, the delivery's share)."""

from datetime import UTC, datetime
from typing import Any

import pytest

from bus import Envelope, Rejected
from bus.trust import budget

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def envelope(**extensions: Any) -> Envelope:
    return Envelope(sender="a", to="b", type="note", extensions=extensions)


@pytest.mark.parametrize(
    ("extensions", "code"),
    [
        ({}, None),
        ({"expires_at": "2026-01-02T00:00:01Z"}, None),
        ({"expires_at": "2026-01-02T00:00:00Z"}, "protocol.expired"),
        ({"expires_at": "2026-01-02T01:00:00+02:00"}, "protocol.expired"),
        ({"expires_at": "2016-12-31T23:59:60Z"}, "protocol.expired"),
        ({"expires_at": "2026-01-02t00:00:01.00000000000000000001z"}, None),
        ({"budget": {"deadline_at": "2026-01-01T00:00:00Z"}}, "protocol.expired"),
        ({"hops": 10}, None),
        ({"hops": 11, "path": ["a", "b"]}, "protocol.loop"),
    ],
)
def test_what_is_refused(extensions: dict[str, Any], code: str | None) -> None:
    if code is None:
        budget.check(envelope(**extensions), max_hops=10, now=NOW)
        return
    with pytest.raises(Rejected) as refused:
        budget.check(envelope(**extensions), max_hops=10, now=NOW)
    assert refused.value.info.code == code


def test_inheritance_counts_a_hop_and_keeps_the_deadline() -> None:
    parent = envelope(budget={"deadline_at": "2026-01-03T00:00:00Z"}, labels=["external"], correlation_id="c")
    inherited = budget.inherit(parent, "b")
    child = Envelope(sender="b", to="c", type="note", extensions=inherited)
    assert (child.causation_id, child.correlation_id, child.hops) == (parent.message_id, "c", 1)
    assert child.extensions["path"] == ["b"]
    assert child.extensions["budget"] == {"deadline_at": "2026-01-03T00:00:00Z"}
    assert child.extensions["labels"] == ["external"]


def test_a_long_chain_keeps_a_bounded_path() -> None:
    message = envelope()
    for _ in range(500):
        message = Envelope(sender="a", to="b", type="note", extensions=budget.inherit(message, "a"))
    assert message.hops == 500
    assert len(message.extensions["path"]) <= 128
