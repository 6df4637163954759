"""Ids: new, derived, and in a header (ENV-2, DEL-2, DEL-7)."""

import re
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.envelope import dedupe_header, derive_message_id, new_message_id, new_trace_id

parts = st.lists(st.text(max_size=12), min_size=1, max_size=5)


def test_new_message_ids_are_uuids_of_version_7_that_sort_by_time() -> None:
    """ENV-2."""
    made = [new_message_id() for _ in range(2000)]
    assert len(set(made)) == len(made)
    assert {uuid.UUID(one).version for one in made} == {7}
    assert {uuid.UUID(one).variant for one in made} == {uuid.RFC_4122}
    assert made == [str(uuid.UUID(one)) for one in made]
    assert [one[:13] for one in made] == sorted(one[:13] for one in made)


def test_new_trace_ids_are_w3c() -> None:
    """ENV-2."""
    made = {new_trace_id() for _ in range(2000)}
    assert len(made) == 2000
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in made)


def test_a_derived_id_never_changes() -> None:
    """DEL-7: stored messages were sent under these ids, so the function is part of the wire."""
    assert derive_message_id("m1", "writer", "send:1") == "7b273427-baca-867c-b7c0-abeff200406e"
    assert derive_message_id("北京") == "5f22577f-bc9e-8ba7-80c4-afe8200ec748"


@given(parts)
def test_a_derived_id_is_deterministic_and_shaped_as_uuid_8(some: list[str]) -> None:
    """DEL-7."""
    derived = derive_message_id(*some)
    assert derived == derive_message_id(*some)
    assert str(uuid.UUID(derived)) == derived
    assert uuid.UUID(derived).version == 8
    assert uuid.UUID(derived).variant == uuid.RFC_4122


@given(parts, parts)
def test_different_parts_give_different_ids(some: list[str], others: list[str]) -> None:
    """DEL-7."""
    assert (derive_message_id(*some) == derive_message_id(*others)) == (some == others)


@given(st.text(min_size=2, max_size=12), st.data())
def test_the_boundary_between_parts_counts(text: str, data: st.DataObject) -> None:
    """DEL-7: the same characters, cut elsewhere, are other parts."""
    cuts = st.integers(0, len(text))
    one, other = data.draw(cuts), data.draw(cuts)
    same = derive_message_id(text[:one], text[one:]) == derive_message_id(text[:other], text[other:])
    assert same == (one == other)
    assert derive_message_id(text) != derive_message_id(text[:one], text[one:])


@pytest.mark.parametrize(
    ("some", "others"),
    [
        (("ab", "c"), ("a", "bc")),
        (("a",), ("a", "")),
        (("",), ("", "")),
        (("1:a",), ("a",)),
        (("a1:b",), ("a", "b")),
        (("a\0b",), ("a", "b")),
    ],
)
def test_parts_that_look_alike_when_joined_do_not_collide(some: tuple[str, ...], others: tuple[str, ...]) -> None:
    """DEL-7."""
    assert derive_message_id(*some) != derive_message_id(*others)


def test_no_part_is_refused() -> None:
    """DEL-7: an id of nothing would be the same one for everybody."""
    with pytest.raises(ValueError, match="at least one part"):
        derive_message_id()


def test_the_header_of_an_ordinary_id_is_the_id() -> None:
    """DEL-2."""
    assert dedupe_header("planner", "msg_003") == "planner:msg_003"
    message_id = new_message_id()
    assert dedupe_header("planner", message_id) == f"planner:{message_id}"


@pytest.mark.parametrize(
    ("message_id", "header"),
    [
        ("msg 003", "a:msg%20003"),
        ("m\r\nNats-TTL: 1", "a:m%0D%0ANats-TTL:%201"),
        ("100%", "a:100%25"),
        ("é", "a:%C3%A9"),
        ("a:b/c?~", "a:a:b/c?~"),
    ],
)
def test_an_odd_id_is_percent_encoded_in_the_header(message_id: str, header: str) -> None:
    """DEL-2, ENV-2: no id can add a header of its own."""
    assert dedupe_header("a", message_id) == header


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_the_header_is_one_printable_word_and_unique(one: str, other: str) -> None:
    """DEL-2: a false duplicate would be a lost message."""
    header = dedupe_header("a", one)
    assert re.fullmatch("[!-~]+", header)
    assert (header == dedupe_header("a", other)) == (one == other)
