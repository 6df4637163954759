"""The command line up to the bus (DESIGN 7): wrong use is 2, no readable source is 1, each one clear line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agents.command import app


def run(*arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(app, ["brief", *arguments], input=stdin)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.md").write_bytes(b"caf\xe9")
    (tmp_path / "good.md").write_text("A good text about kites.")
    return tmp_path


def test_no_readable_source_says_why_for_each(folder: Path) -> None:
    result = run("goal", "bad.md", "gone.md", "-")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "skipped bad.md: not UTF-8: byte 0xE9 at offset 3, line 1; convert it to UTF-8 first",
        "skipped gone.md: no such file or folder; check the spelling",
        "skipped stdin: empty",
        "error: none of the sources can be read; see above",
    ]


def test_json_is_the_only_thing_on_standard_output(folder: Path) -> None:
    result = run("goal", "bad.md", "--json")
    assert result.exit_code == 1
    printed = json.loads(result.stdout)
    assert printed["ok"] is False
    assert printed["error"]["code"] == "no_sources"
    assert [skipped["code"] for skipped in printed["skipped"]] == ["not_utf8"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["", "good.md"], "GOAL"),
        (["how is the", "good.md"], "GOAL"),
        (["x" * 1001, "good.md"], "GOAL"),
        (["goal", "good.md", "--out", "no/such/folder.md"], "--out no/such/folder.md"),
        (["goal", "good.md", "--out", "."], "--out ."),
        (["goal", "good.md", "--out", "good.md"], "would be overwritten"),
        (["goal", "good.md", "--sections", "0"], "--sections"),
        (["goal", "good.md", "--rounds", "99"], "--rounds"),
        (["goal"], "PATH"),
    ],
)
def test_wrong_use_is_2_and_says_what(folder: Path, arguments: list[str], says: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert says in result.stderr
    assert "Traceback" not in result.output


def test_help_has_an_example() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "python -m agents brief" in result.stdout
