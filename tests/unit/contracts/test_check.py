"""SCH-1, SCH-2: the rules of a catalogue, whatever the payloads say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bus.contracts.catalogue import Catalogue
from bus.contracts.check import changed, check
from bus.contracts.findings import Severity
from tests.unit.contracts.conftest import Written, note

AUTHOR = {"type": "string", "description": "Who wrote it."}


def found(catalogue: Catalogue, **options: Any) -> list[tuple[str, str]]:
    return [(one.rule, one.severity.value) for one in check(catalogue, **options)]


def errors(catalogue: Catalogue, **options: Any) -> list[str]:
    return [one.rule for one in check(catalogue, **options) if one.severity is Severity.ERROR]


def test_a_released_catalogue_has_nothing_to_say(written: Written) -> None:
    files = {"note/1.0.json": note(), "note/1.1.json": note(author=AUTHOR)}
    assert found(written(files, released=list(files))) == []


def test_a_released_file_that_changed_is_refused_with_its_day_and_what_to_do(written: Written, folder: Path) -> None:
    written({"note/1.0.json": note(), "note/1.1.json": note()}, released=["note/1.0.json", "note/1.1.json"])
    (folder / "note" / "1.0.json").write_text(json.dumps(note(author=AUTHOR)))
    (finding,) = check(Catalogue.read(folder))
    assert finding.rule == "released-changed"
    assert "released on 2026-01-31" in finding.message
    assert "1.2.json" in finding.mend


def test_a_contract_without_a_lock_entry_is_work_in_progress(written: Written) -> None:
    assert found(written({"note/1.0.json": note()})) == [("not-released", "notice")]


def test_a_contract_without_an_owner(written: Written) -> None:
    catalogue = written({"note/1.0.json": note()}, released=["note/1.0.json"], owner="")
    assert found(catalogue) == [("owner-missing", "warning")]


@pytest.mark.parametrize(
    ("names", "bad"),
    [
        (["1.0", "1.2"], ["version-gap"]),
        (["1.0", "3.0"], ["version-gap"]),
        (["1.0", "2.1"], ["version-gap"]),
        (["1.0", "1.1", "2.0", "2.1"], []),
        (["1.3", "1.4"], []),
        (["0.9", "1.0"], []),
    ],
)
def test_numbers_have_no_gaps(written: Written, names: list[str], bad: list[str]) -> None:
    files = {f"note/{name}.json": note() for name in names}
    assert errors(written(files, released=list(files))) == bad


def test_a_file_that_cannot_be_read_is_no_gap_as_well(written: Written) -> None:
    files: dict[str, Any] = {"note/1.0.json": note(), "note/1.1.json": b"{", "note/1.2.json": note()}
    assert errors(written(files, released=["note/1.0.json", "note/1.2.json"])) == ["unreadable"]


def test_one_working_version_of_a_major_is_enough(written: Written) -> None:
    files = {f"note/1.{minor}.json": note() for minor in range(3)}
    assert errors(written(files, released=["note/1.0.json"])) == ["two-working-versions"]


def test_an_old_major_may_have_a_working_version_beside_a_new_one(written: Written) -> None:
    files = {f"note/{name}.json": note() for name in ("1.0", "1.1", "2.0", "2.1")}
    assert errors(written(files, released=["note/1.0.json", "note/2.0.json"])) == []


def test_a_version_cannot_be_slipped_in_before_a_released_one(written: Written) -> None:
    files = {f"note/1.{minor}.json": note() for minor in range(3)}
    assert errors(written(files, released=["note/1.0.json", "note/1.2.json"])) == ["released-out-of-order"]


def test_a_retired_name_may_not_come_back(written: Written) -> None:
    files = {"note/1.0.json": note(), "note/1.1.json": note(author=AUTHOR)}
    catalogue = written(files, released=["note/1.0.json"], reserved={"author": "removed in 0.9"})
    (finding,) = [one for one in check(catalogue) if one.severity is Severity.ERROR]
    assert (finding.rule, finding.path) == ("name-reserved", "author")
    assert "removed in 0.9" in finding.message


def test_an_old_major_keeps_a_name_that_a_newer_one_retired(written: Written) -> None:
    files = {f"note/{name}.json": note(author=AUTHOR) for name in ("1.0", "1.1")} | {"note/2.0.json": note()}
    released = ["note/1.0.json", "note/2.0.json"]
    assert errors(written(files, released=released, reserved={"author": "removed in 2.0"})) == []


def test_a_new_major_reminds_of_its_upcaster(written: Written) -> None:
    files = {"note/1.0.json": note(), "note/2.0.json": note()}
    assert found(written(files, released=["note/1.0.json"])) == [("major-bump", "notice")]


def test_only_the_types_that_are_asked_for(written: Written) -> None:
    catalogue = written({"note/1.0.json": b"{", "order/1.0.json": b"{"})
    assert [one.file.rpartition("schemas/")[2] for one in check(catalogue, types=["note"])] == ["note/1.0.json"]


def test_several_processes_find_what_one_finds(written: Written) -> None:
    files: dict[str, Any] = {}
    for number in range(90):
        for minor in range(5):
            files[f"note_{number}/1.{minor}.json"] = note() | ({"required": ["text", "more"]} if minor == 4 else {})
    catalogue = written(files)
    alone = check(catalogue)
    assert check(catalogue, workers=2) == alone
    assert sum(one.rule == "breaks-new-readers" for one in alone) == 90


class TestSince:
    """The change since a revision: promises that stood there must stand here."""

    @pytest.fixture
    def before(self, written: Written) -> Catalogue:
        files = {"note/1.0.json": note(), "order/1.0.json": note()}
        return written(files, released=list(files), reserved={"gone": "removed"})

    def rewritten(self, folder: Path, change: Any) -> Catalogue:
        lock = json.loads((folder / "lock.json").read_text())
        change(lock["contracts"])
        (folder / "lock.json").write_text(json.dumps(lock))
        return Catalogue.read(folder)

    def test_nothing_changed(self, before: Catalogue) -> None:
        assert (changed(before, before), found(before, since=before)) == (set(), [])

    def test_only_what_changed_is_looked_at(self, before: Catalogue, folder: Path) -> None:
        (folder / "note" / "1.1.json").write_text(json.dumps(note(author=AUTHOR)))
        assert changed(before, Catalogue.read(folder)) == {"note"}

    def test_a_release_that_is_rewritten_with_its_file_is_found(self, before: Catalogue, folder: Path) -> None:
        (folder / "note" / "1.0.json").write_text(json.dumps(note(author=AUTHOR)))
        sha256 = Catalogue.read(folder).contracts["note"].newest.sha256

        def forge(contracts: Any) -> None:
            contracts["note"]["versions"]["1.0"]["sha256"] = sha256

        now = self.rewritten(folder, forge)
        assert errors(now) == []
        assert errors(now, since=before) == ["release-rewritten"]

    @pytest.mark.parametrize(
        ("change", "rule", "severity"),
        [
            (lambda all: all.pop("note"), "release-withdrawn", "error"),
            (lambda all: all["note"]["versions"].clear(), "release-withdrawn", "error"),
            (lambda all: all["note"]["versions"]["1.0"].update(released="2026-02-01"), "release-rewritten", "error"),
            (lambda all: all["note"]["reserved"].clear(), "name-freed", "error"),
            (lambda all: all["note"].update(mode="backward"), "mode-weakened", "warning"),
            (lambda all: all["note"].update(mode="full"), "mode-weakened", "warning"),
        ],
    )
    def test_a_promise_that_is_taken_back(
        self, before: Catalogue, folder: Path, change: Any, rule: str, severity: str
    ) -> None:
        assert (rule, severity) in found(self.rewritten(folder, change), since=before)

    def test_what_no_lock_file_named_was_no_promise(self, before: Catalogue) -> None:
        empty = Catalogue.of_files("schemas", {"vectors/a.json": b"x", "note/1.0.json": b"{"})
        assert errors(before, since=empty) == []
        assert changed(empty, before) == {"note", "order"}


def test_a_lock_that_cannot_be_read_is_told_once(written: Written, folder: Path) -> None:
    """What it would have said of releases is not guessed."""
    written({"note/1.0.json": note(), "note/1.1.json": note()}, released=["note/1.0.json", "note/1.1.json"])
    (folder / "lock.json").write_text("{")
    assert found(Catalogue.read(folder)) == [("lock-unreadable", "error")]
