"""SCH-1: the lock file says who owns what and what is released; a misspelt promise is refused."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest

from bus.contracts.lock import Entry, Lock, LockError, Release
from bus.contracts.version import parse_version

SHA = "0" * 64
GOOD: dict[str, Any] = {
    "format": 1,
    "ignore": ["vectors"],
    "contracts": {
        "note": {
            "owner": "desk",
            "mode": "backward",
            "strict": True,
            "model": "desk.models:Note",
            "senders": ["alice"],
            "receivers": ["*"],
            "reserved": {"old": "removed in 1.1"},
            "versions": {"1.0": {"sha256": SHA, "released": "2026-01-31", "note": "first", "accepted": "why"}},
        }
    },
}


def lock_of(value: Any) -> Lock:
    return Lock.read(json.dumps(value).encode())


def test_what_is_read_is_written_again() -> None:
    lock = lock_of(GOOD)
    assert json.loads(lock.write()) == GOOD
    assert lock.contracts["note"].versions == {(1, 0): Release(SHA, date(2026, 1, 31), "first", "why")}


def test_versions_are_sorted_by_number_and_not_by_text() -> None:
    entry = Entry()
    for minor in (10, 9, 2):
        entry = entry.released((1, minor), Release(SHA, date(2026, 1, 31)), {})
    assert list(entry.versions) == [(1, 2), (1, 9), (1, 10)]


def changed(path: str, value: Any) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(GOOD))
    *parts, last = path.split("/")
    node: Any = copy
    for part in parts:
        node = node[part]
    node[last] = value
    return copy


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("format", 2, "format must be 1"),
        ("owners", {}, "unknown member 'owners'"),
        ("ignore", ["a/b"], "'a/b' is not a folder name"),
        ("ignore", "vectors", "ignore must be an array"),
        ("contracts", [], "contracts must be an object"),
        ("contracts/../etc", {}, "'../etc' is not a message type"),
        ("contracts/note/mdoe", "full", "unknown member 'mdoe'"),
        ("contracts/note/mode", "fully", "contracts.note.mode must be one of backward"),
        ("contracts/note/mode", ["full"], "contracts.note.mode must be one of"),
        ("contracts/note/strict", "yes", "contracts.note.strict must be true or false"),
        ("contracts/note/model", "os", "contracts.note.model must be module:Name"),
        ("contracts/note/model", "a b:C", "contracts.note.model must be module:Name"),
        ("contracts/note/owner", 7, "contracts.note.owner must be a string"),
        ("contracts/note/senders", ["a b"], "contracts.note.senders: 'a b' is not an agent name"),
        ("contracts/note/senders", [7], "contracts.note.senders: 7 is not an agent name"),
        ("contracts/note/reserved", {"a": 1}, "contracts.note.reserved.a must be a string"),
        ("contracts/note/versions/1", {}, "'1' is not a version"),
        ("contracts/note/versions/01.0", {}, "'01.0' is not a version"),
        ("contracts/note/versions/1.0/sha256", "F" * 64, "sha256 must be 64 lower-case hex digits"),
        ("contracts/note/versions/1.0/released", "2026-02-30", "released must be a day"),
        ("contracts/note/versions/1.0/released", "20260131", "released must be a day"),
    ],
)
def test_a_wrong_lock_is_refused_at_its_place(path: str, value: Any, says: str) -> None:
    wrong = changed(path, value) if path != "contracts/../etc" else {"format": 1, "contracts": {"../etc": {}}}
    with pytest.raises(LockError) as refused:
        lock_of(wrong)
    assert says in str(refused.value)


def test_a_merge_that_keeps_one_version_twice_is_refused() -> None:
    with pytest.raises(LockError, match=r"'1\.0' stands twice"):
        Lock.read(b'{"format": 1, "contracts": {"note": {"versions": {"1.0": {}, "1.0": {}}}}}')


@pytest.mark.parametrize(
    "text", ["1", "1.", "01.0", "1.00", "1.0.0", "-1.0", "1.0 ", "1.1234567", "\N{FULLWIDTH DIGIT ONE}.0", ""]
)
def test_what_is_no_version(text: str) -> None:
    assert parse_version(text) is None


def test_versions() -> None:
    assert (parse_version("0.0"), parse_version("999999.10")) == ((0, 0), (999999, 10))
