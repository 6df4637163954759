"""What is remembered: exact, bounded in time and number, and small (DEL-2)."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from bus.delivery.dedupe import digest
from bus.delivery.remembered import Remembered

# Few letters, so that a digest often stands in the middle of two others.
KEYS = st.lists(st.sampled_from(b"\0\1"), min_size=15, max_size=15).map(lambda rest: b"a" + bytes(rest))


def _key(name: str) -> bytes:
    return digest("somebody", name)


def test_remembers_for_the_window_and_forgets_after_two() -> None:
    remembered = Remembered(window_s=10, max_ids=1000)
    remembered.add(_key("first"), 0)
    remembered.add(_key("second"), 10)
    assert _key("first") in remembered
    remembered.add(_key("third"), 11)
    assert _key("first") in remembered
    remembered.add(_key("fourth"), 22)
    assert _key("first") not in remembered
    assert _key("third") in remembered


@given(st.lists(KEYS, max_size=300), st.integers(4, 50))
def test_never_holds_more_than_its_number_and_always_the_newest_half(keys: list[bytes], max_ids: int) -> None:
    remembered = Remembered(window_s=1e9, max_ids=max_ids)
    for at, key in enumerate(keys):
        remembered.add(key, at)
        assert len(remembered) <= max_ids + 1
        assert key in remembered
    for key in keys[-(max_ids // 2) :]:
        assert key in remembered


@given(st.lists(st.tuples(st.booleans(), KEYS), max_size=300))
def test_it_is_a_set(steps: list[tuple[bool, bytes]]) -> None:
    remembered, model = Remembered(window_s=1e9, max_ids=10_000), set()
    for adds, key in steps:
        assert (key in remembered) == (key in model)
        if adds:
            remembered.add(key, 0)
            model.add(key)
        assert len(remembered) == len(model)


def test_an_id_costs_less_than_22_bytes() -> None:
    remembered = Remembered(window_s=1e9, max_ids=1_000_000)
    tracemalloc.start()
    for number in range(150_000):
        remembered.add(digest("sender", str(number)), 0)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The rows, and a header each, are there from the start; here few ids share them.
    assert (grown - (1 << 17) - (1 << 14) * 40) / 150_000 < 22


@given(st.text(), st.text(), st.text(), st.text())
def test_digests_differ_when_identities_do(sender: str, id: str, other_sender: str, other_id: str) -> None:
    names = [one.replace("\0", "").encode("utf-8", "ignore").decode() for one in (sender, id, other_sender, other_id)]
    same = names[:2] == names[2:]
    assert (digest(names[0], names[1]) == digest(names[2], names[3])) == same
