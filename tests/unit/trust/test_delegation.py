"""Delegation: the chain of those on whose behalf is acted (SEC-2)."""

from __future__ import annotations

import pytest

from bus import Envelope, Rejected
from bus.trust import budget
from bus.trust.delegation import askers, chain_of


def envelope(sender: str, **extensions: object) -> Envelope:
    return Envelope(sender=sender, to="b", type="note", extensions=extensions)


def test_the_chain_grows_by_the_sender_and_names_everybody_once() -> None:
    """SEC-2."""
    first = envelope("a")
    assert askers(first) == ("a",)
    second = envelope("b", **budget.inherit(first, "b"))
    assert askers(second) == ("b", "a")
    third = envelope("a", **budget.inherit(second, "a"))
    assert chain_of(third) == ["a", "b"]


def test_a_sender_can_lengthen_the_chain_and_not_shorten_it() -> None:
    """SEC-2: it can only narrow."""
    parent = envelope("b", on_behalf_of=["a"])
    assert budget.inherit(parent, "x", {"on_behalf_of": []})["on_behalf_of"] == ["a", "b"]
    assert budget.inherit(parent, "x", {"on_behalf_of": ["b", "c"]})["on_behalf_of"] == ["a", "b", "c"]
    assert budget.inherit(parent, "x", {"priority": "high"})["on_behalf_of"] == ["a", "b"]


@pytest.mark.parametrize("given", [None, "a", 3, {"a": 1}, [3]])
def test_what_is_no_chain_is_refused_by_the_envelope(given: object) -> None:
    """SEC-2."""
    with pytest.raises(Rejected):
        envelope("x", **budget.inherit(envelope("a"), "x", {"on_behalf_of": given}))
