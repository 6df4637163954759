"""SCH-1: a catalogue is read whole; what is wrong with a file is a finding, and hostile names lead nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bus.contracts import catalogue as module
from bus.contracts.catalogue import Catalogue, CatalogueError, digest
from bus.contracts.json_text import MAX_FILE_BYTES
from tests.unit.contracts.conftest import Written, note


def rules(catalogue: Catalogue) -> dict[str, str]:
    return {problem.file.rpartition("schemas/")[2]: problem.rule for problem in catalogue.problems}


def test_contracts_and_versions_are_sorted_by_number(written: Written) -> None:
    found = written({f"note/1.{minor}.json": note() for minor in (10, 9, 0)} | {"an_order/1.0.json": note()})
    assert list(found.contracts) == ["an_order", "note"]
    assert [one.number for one in found.contracts["note"].versions] == [(1, 0), (1, 9), (1, 10)]
    assert found.problems == ()


def test_a_version_knows_its_release(written: Written) -> None:
    found = written({"note/1.0.json": note(), "note/1.1.json": note()}, released=["note/1.0.json"])
    first, second = found.contracts["note"].versions
    assert (str(first), str(first.released), second.released) == ("note@1.0", "2026-01-31", None)
    assert first.release is not None
    assert first.sha256 == first.release.sha256


def test_line_ends_of_a_checkout_do_not_change_the_digest() -> None:
    assert digest(b"{\r\n}\r\n") == digest(b"{\n}\n")


def test_a_broken_file_does_not_hide_the_others(written: Written) -> None:
    found = written(
        {
            "note/1.0.json": b'{"type": ',
            "note/1.1.json": {"$schema": "http://json-schema.org/draft-04/schema#"},
            "note/1.2.json": {"$ref": "https://example.com/other.json"},
            "note/1.3.json": [],
            "note/01.4.json": note(),
            "note/1.json": note(),
            "note/readme.md": b"",
            "Note/1.0.json": note(),
            "order/1.0.json": note(),
        }
    )
    assert list(found.contracts) == ["order"]
    assert rules(found) == {
        "note/1.0.json": "unreadable",
        "note/1.1.json": "unknown-draft",
        "note/1.2.json": "remote-reference",
        "note/1.3.json": "not-a-schema",
        "note/01.4.json": "stray-file",
        "note/1.json": "stray-file",
        "note/readme.md": "stray-file",
        "Note": "bad-name",
    }


def test_links_are_not_followed(written: Written, folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "1.0.json").write_text(json.dumps(note()))
    (folder / "linked").symlink_to(outside)
    (folder / "note").mkdir()
    (folder / "note" / "1.0.json").symlink_to(outside / "1.0.json")
    (folder / "note" / "1.1.json").symlink_to(folder / "nowhere")
    found = written({"order/1.0.json": note()})
    assert rules(found) == {
        "linked": "symbolic-link",
        "note/1.0.json": "symbolic-link",
        "note/1.1.json": "symbolic-link",
    }
    assert list(found.contracts) == ["order"]


def test_a_linked_lock_file_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "lock.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CatalogueError, match="not a plain file"):
        Catalogue.read(folder)


def test_a_folder_is_no_version(written: Written, folder: Path) -> None:
    (folder / "note" / "1.0.json").mkdir(parents=True)
    assert rules(written({})) == {"note/1.0.json": "stray-file"}


def test_names_of_tools_and_ignored_folders_are_left_out(written: Written, folder: Path) -> None:
    (folder / "lock.json").write_text('{"format": 1, "ignore": ["vectors"]}')
    files: dict[str, Any] = {"vectors/a.json": b"x", "__pycache__/x.pyc": b"x", ".git/HEAD": b"x", "note/.swp": b"x"}
    found = written(files | {"models.py": b"", "note/1.0.json": note()})
    assert (list(found.contracts), found.problems) == (["note"], ())


def test_a_released_file_that_is_missing_is_told(written: Written, folder: Path) -> None:
    written({"note/1.0.json": note()}, released=["note/1.0.json"])
    (folder / "note" / "1.0.json").unlink()
    assert rules(Catalogue.read(folder)) == {"note/1.0.json": "released-missing"}


def test_a_broken_lock_is_a_finding(written: Written, folder: Path) -> None:
    (folder / "lock.json").write_text('{"format": 1')
    assert rules(written({"note/1.0.json": note()})) == {"lock.json": "lock-unreadable"}


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="is not a folder"):
        Catalogue.read(tmp_path / "nowhere")


def test_a_folder_that_is_too_large_to_be_a_catalogue(
    written: Written, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_FILES", 1)
    with pytest.raises(CatalogueError, match="is it a catalogue"):
        written({"note/1.0.json": note(), "note/1.1.json": note()})


def test_one_file_that_is_too_large(written: Written, folder: Path) -> None:
    found = written({"note/1.0.json": b" " * (MAX_FILE_BYTES + 1)})
    assert rules(found) == {"note/1.0.json": "too-large"}


def test_a_contract_that_is_not_there_is_told_with_those_that_are(written: Written) -> None:
    found = written({"note/1.0.json": note()})
    with pytest.raises(CatalogueError, match=r"no contract '\.\./note'; it has note"):
        found.contract("../note")


def test_a_problem_belongs_to_the_contract_whose_folder_it_is_in(written: Written, folder: Path) -> None:
    """Not to one whose name is part of the path, and a link in the place of a folder is that contract's."""
    catalogue = written({"note_pad/1.0.json": b"{", "schemas/1.0.json": note(), "note/1.0.json": note()})
    (folder / "linked").symlink_to(folder / "note")
    catalogue = Catalogue.read(folder)

    def of(*types: str) -> list[str]:
        return [one.rule for one in catalogue.problems_of(types)]

    assert (of("note"), of("schemas"), of("note_pad"), of("linked")) == ([], [], ["unreadable"], ["symbolic-link"])
    catalogue.refuse_broken({"note", "schemas"})
    with pytest.raises(CatalogueError, match="note_pad/"):
        catalogue.refuse_broken({"note_pad"})
    (folder / "lock.json").write_text("{")
    assert [one.rule for one in Catalogue.read(folder).problems_of(())] == ["lock-unreadable"]
