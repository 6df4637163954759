"""Subjects round trip, and no text can break out of its token (SEC-7)."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.broker.subjects import Subjects, WorkSubject, is_key_lane, key_lane, token
from bus.errors import Rejected

SUBJECTS = Subjects("bus")
names = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
types = st.from_regex(r"[a-z][a-z0-9_]{0,63}", fullmatch=True)


@given(to=names, sender=names, type=types, lane=st.sampled_from(["high", "normal", "low"]))
def test_work_subjects_round_trip(to: str, sender: str, type: str, lane: str) -> None:
    assert SUBJECTS.parse_work(SUBJECTS.work(to, lane, sender, type)) == WorkSubject(to, lane, sender, type)


@given(st.text())
def test_foreign_subjects_are_rejected_or_have_four_tokens(text: str) -> None:
    subject = f"bus.v1.work.{text}"
    if text.count(".") == 3:
        parsed = SUBJECTS.parse_work(subject)
        assert SUBJECTS.work(parsed.to, parsed.lane, parsed.sender, parsed.type) == subject
        return
    with pytest.raises(Rejected) as refused:
        SUBJECTS.parse_work(subject)
    assert refused.value.info.code == "protocol.malformed"


@given(st.text(), st.text())
def test_a_token_has_no_dots_wildcards_or_spaces_and_is_one_to_one(left: str, right: str) -> None:
    left, right = (text.encode("utf-8", "ignore").decode() for text in (left, right))
    made = token(left)
    assert made
    assert not set(made) & set(". *>\r\n\t")
    assert made.isascii()
    assert (made == token(right)) == (left == right)


def test_the_subjects_of_the_specification() -> None:
    assert SUBJECTS.work("writer", "normal", "planner", "draft") == "bus.v1.work.writer.normal.planner.draft"
    assert SUBJECTS.event("planner", "wf 1", "ready") == "bus.v1.event.planner.wf=201.ready"
    assert SUBJECTS.event("planner", None, "ready") == "bus.v1.event.planner.-.ready"
    assert SUBJECTS.dead("writer", "protocol.malformed") == "bus.v1.dead.writer.protocol-malformed"
    assert SUBJECTS.done("writer") == "bus.v1.done.writer"
    with pytest.raises(Rejected):
        SUBJECTS.parse_work("bus.v1.work.writer")


KEY_LANES = {
    "customer 7": hashlib.sha256(b"customer 7").digest()[0] % 16,
    "ä": hashlib.sha256("ä".encode()).digest()[0] % 16,
}


@pytest.mark.parametrize("key", KEY_LANES)
def test_the_lane_of_a_key_is_the_first_byte_of_its_sha256(key: str) -> None:
    """DEL-8: another language must come to the same lane."""
    assert key_lane(key) == f"key-{KEY_LANES[key]:02d}"


@given(st.text(min_size=1, max_size=256))
def test_every_key_has_one_of_sixteen_lanes(key: str) -> None:
    """DEL-8."""
    assert key_lane(key) in {f"key-{number:02d}" for number in range(16)}
    assert is_key_lane(key_lane(key))


def test_due_messages_and_broadcasts_name_their_sender() -> None:
    """SEC: the tokens that the identity is checked against."""
    assert SUBJECTS.parse_work(SUBJECTS.due("w", "boss", "t")) == WorkSubject("w", "due", "boss", "t")
    assert SUBJECTS.parse_work(SUBJECTS.event("boss", "wf.1", "t")) == WorkSubject("*", "*", "boss", "t")
    assert SUBJECTS.later("w", "boss", "t", "m") == SUBJECTS.later("w", "boss", "t", "m")
    assert SUBJECTS.later("w", "boss", "t", "m") != SUBJECTS.later("w", "boss", "t", "n")
