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


def test_the_hops_of_a_budget_and_the_visits_of_an_agent_end_a_loop() -> None:
    """WF-6: the lower of two limits of hops counts; an agent may say how often a chain may pass it."""
    budget.check(envelope(hops=3, budget={"hops": 3}), max_hops=10)
    for extensions, visits in (({"hops": 4, "budget": {"hops": 3}}, None), ({"hops": 2, "path": ["b", "a", "b"]}, 2)):
        with pytest.raises(Rejected) as refused:
            budget.check(envelope(**extensions), max_hops=10, max_visits=visits)
        assert refused.value.info.code == "protocol.loop"
    budget.check(envelope(hops=2, path=["b", "a", "b"]), max_hops=10, max_visits=3)


def child(parent: Envelope, **given: Any) -> Envelope:
    return Envelope(sender="b", to="c", type="note", extensions=budget.inherit(parent, "b", given))


def test_a_chain_has_one_account_and_a_share_another_within_it() -> None:
    """WF-6: children use their origin's account; a budget given on the way can only narrow it."""
    root = envelope(budget={"calls": 10, "tokens": 5, "hops": 9, "deadline_at": "2026-01-03T00:00:00Z"})
    opened = budget.account_of(root)
    assert opened is not None
    assert opened.limits == {"calls": 10, "tokens": 5}
    one = child(root)
    two = child(one, labels=["external"])
    assert budget.account_of(one) == budget.account_of(two) == opened
    later = "2027-01-01T00:00:00Z"
    share = child(two, budget={"calls": 3, "hops": 99, "deadline_at": later, "account": "mine", "within": []}, hops=0)
    own = budget.account_of(share)
    assert own == budget.Account(budget.own_account("b", share.message_id), {"calls": 3}, (opened.name,))
    assert share.extensions["budget"]["hops"] == 9
    assert share.extensions["budget"]["deadline_at"] == "2026-01-03T00:00:00Z"
    assert (share.hops, share.extensions["labels"]) == (3, ["external"])
    assert budget.account_of(child(share)) == own
    earlier = child(two, budget={"deadline_at": "2026-01-02T12:00:00+02:00"})
    assert earlier.extensions["budget"]["deadline_at"] == "2026-01-02T12:00:00+02:00"
    assert budget.account_of(earlier) == opened
    assert budget.account_of(envelope(budget={"deadline_at": later})) is None


def test_shares_of_shares_are_bounded_and_wrong_ones_refused() -> None:
    """SEC-7: nobody nests budgets without end; a wrong type is named."""
    message = envelope(budget={"calls": 100})
    with pytest.raises(Rejected) as refused:  # noqa: PT012 - somewhere on the way
        for _ in range(20):
            message = child(message, budget={"calls": 100})
    assert refused.value.info.details["path"] == "extensions.budget.within"
    for wrong in (7, {"calls": "many"}, {"deadline_at": "soon"}, {"hops": "few"}):
        with pytest.raises(Rejected) as refused:
            child(envelope(budget={"calls": 1, "hops": 2, "deadline_at": "2026-01-03T00:00:00Z"}), budget=wrong)
        assert refused.value.info.code == "protocol.malformed"
    with pytest.raises(ValueError, match="tokens is -1"):
        budget.Budget(tokens=-1)
