"""Chains of upcasters: what they accept, what they refuse, and what their functions cannot do to others (SCH-4)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.contracts.upcast import Chain, Contracts, cast_along, compiled, downcasters
from bus.contracts.version import ContractVersion
from bus.errors import Rejected

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def rises(first: int, last: int) -> Contracts:
    """Upcasters from `first` to `last`; each counts itself into the payload, whatever that is."""
    contracts = Contracts()
    for major in range(first, last):

        @contracts.upcast("note", major)
        def step(payload: dict[str, Any], major: int = major) -> dict[str, Any]:
            payload.setdefault("steps", [])
            if isinstance(payload["steps"], list):
                payload["steps"].append(major)
            for value in payload.values():
                if isinstance(value, list):
                    value.append("changed")
            return payload

    return contracts


def chain(first: int, last: int) -> Chain:
    return compiled({"note": ContractVersion("note", last, 3)}, rises(first, last))["note"]


@given(
    first=st.integers(0, 5),
    length=st.integers(0, 5),
    received=st.integers(0, 12),
    minor=st.integers(0, 9),
    payload=st.dictionaries(st.text(), JSON, max_size=4),
)
def test_a_chain_reads_exactly_what_it_says(
    first: int, length: int, received: int, minor: int, payload: dict[str, Any]
) -> None:
    """Any payload of any version: every step once and in order, refused, or untouched; the payload stays as it was."""
    last = first + length
    one, before = chain(first, last), copy.deepcopy(payload)
    payload.pop("steps", None)
    before.pop("steps", None)
    assert one.majors == list(range(first, last + 1))
    if received not in one.majors:
        with pytest.raises(Rejected) as refused:
            one.read(payload, f"note@{received}.{minor}")
        assert refused.value.info.code == "protocol.unsupported_schema"
        assert refused.value.info.details["supported"] == [f"note@{major}" for major in one.majors]
    elif received == last:
        assert one.read(payload, f"note@{received}.{minor}") is payload
    else:
        steps = one.read(payload, f"note@{received}.{minor}")["steps"]
        assert [step for step in steps if step != "changed"] == list(range(received, last))
    assert payload == before


@given(payload=JSON.filter(lambda value: not isinstance(value, dict)))
def test_what_is_no_object_is_refused(payload: Any) -> None:
    with pytest.raises(Rejected, match="it takes an object"):
        chain(1, 3).read(payload, "note@1.0")


class Nasty(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (KeyError("title"), "KeyError: 'title'"),
        (SystemExit(3), "SystemExit: 3"),
        (Nasty(), "Nasty: its text cannot be shown"),
        (ValueError("x" * 5000), "x…"),
        (ValueError("\ud800 two\nlines"), "ValueError: ? two lines"),
        (RecursionError("deep"), "RecursionError: deep"),
    ],
)
def test_whatever_an_upcaster_raises_is_a_refusal_in_one_line(raised: BaseException, told: str) -> None:
    contracts = Contracts()

    @contracts.upcast("note", 1)
    def step(payload: dict[str, Any]) -> dict[str, Any]:
        raise raised

    with pytest.raises(Rejected) as refused:
        cast_along(contracts.steps, {}, "note@1.4")
    info = refused.value.info
    assert info.code == "tool.validation_failed"
    assert told in info.message
    assert "\n" not in info.message
    assert info.details["received"] == "note@1.4"
    assert "upcaster note 1 to 2" in info.details["step"]


@pytest.mark.parametrize("returned", [None, [], "x", 7])
def test_what_is_not_returned_as_an_object_is_a_refusal(returned: Any) -> None:
    contracts = Contracts()
    contracts.upcast("note", 1)(lambda payload: returned)
    with pytest.raises(Rejected, match="it returned"):
        cast_along(contracts.steps, {}, "note@1.0")


def test_an_interrupt_is_no_refusal() -> None:
    contracts = Contracts()

    @contracts.upcast("note", 1)
    def step(payload: dict[str, Any]) -> dict[str, Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cast_along(contracts.steps, {}, "note@1.0")


def test_everything_that_is_wrong_is_told_at_once() -> None:
    own, shared = rises(1, 2), rises(4, 6)
    own.upcast("other", 1)(dict)
    own.upcast("loose", 1)(dict)
    shared.upcast("unused", 1)(dict)
    shared.upcast("note", 1)(dict)
    with pytest.raises(ValueError) as refused:
        compiled({"note": ContractVersion("note", 5, 0), "loose": None}, own, [shared])
    reasons = str(refused.value).split("; ")
    assert len(reasons) == 5
    for part in (
        "upcaster note 1 to 2 (dict) are two for one step",
        "leads past the handler's model, which is note@5.0",
        "have a gap below note@5.0: 2 to 3, 3 to 4",
        "upcasters for 'other', but no handler",
        "'loose', but its handler says no version",
    ):
        assert part in str(refused.value)


def test_the_same_function_twice_is_no_double() -> None:
    """Two shared modules may hand on the same upcaster."""
    one, two = Contracts(), Contracts()
    one.upcast("note", 1)(dict)
    two.upcast("note", 1)(dict)
    assert compiled({"note": ContractVersion("note", 2, 0)}, Contracts(), [one, two])["note"].majors == [1, 2]


def test_downcasters_are_found_by_where_they_begin() -> None:
    one, two = Contracts(), Contracts()
    one.downcast("note", 2)(dict)
    one.upcast("note", 1)(dict)
    assert list(downcasters([one])) == [("note", 2)]
    two.downcast("note", 2)(dict.copy)
    with pytest.raises(ValueError, match="two for one step"):
        downcasters([one, two])


def test_what_cannot_be_a_step_is_refused_where_it_is_written() -> None:
    contracts = Contracts()

    async def waits(payload: dict[str, Any]) -> dict[str, Any]:
        return payload

    with pytest.raises(TypeError, match="must be a plain def"):
        contracts.upcast("note", 1)(waits)  # type: ignore[type-var]
    for wrong in (contracts.upcast, contracts.downcast):
        with pytest.raises(ValueError, match="majors begin at 0"):
            wrong("note", -1)
    with pytest.raises(ValueError, match="majors begin at 0"):
        contracts.downcast("note", 0)
