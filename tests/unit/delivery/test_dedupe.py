"""What is remembered: bounded in time and number (DEL-2)."""

from hypothesis import given
from hypothesis import strategies as st

from bus.delivery.dedupe import Remembered, digest


def test_remembers_for_the_window_and_forgets_after_two() -> None:
    remembered = Remembered(window_s=10, max_ids=1000)
    remembered.add(b"first", 0)
    remembered.add(b"second", 10)
    assert b"first" in remembered
    remembered.add(b"third", 11)
    assert b"first" in remembered
    remembered.add(b"fourth", 22)
    assert b"first" not in remembered
    assert b"third" in remembered


@given(st.lists(st.binary(min_size=1, max_size=3), max_size=300), st.integers(4, 50))
def test_never_holds_more_than_its_number_and_always_the_newest_half(keys: list[bytes], max_ids: int) -> None:
    remembered = Remembered(window_s=1e9, max_ids=max_ids)
    for at, key in enumerate(keys):
        remembered.add(key, at)
        assert len(remembered) <= max_ids + 1
        assert key in remembered
    for key in keys[-(max_ids // 2) :]:
        assert key in remembered


@given(st.text(), st.text(), st.text(), st.text())
def test_digests_differ_when_identities_do(sender: str, id: str, other_sender: str, other_id: str) -> None:
    names = [one.replace("\0", "").encode("utf-8", "ignore").decode() for one in (sender, id, other_sender, other_id)]
    same = names[:2] == names[2:]
    assert (digest(names[0], names[1]) == digest(names[2], names[3])) == same
