"""Reading what the user names (WF-5): every problem is typed and one line, a bad file never stops a good one."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from agents import sources
from agents.sources import MIB, ProblemCode, Reading, is_markdown, read, split_lines


def write(folder: Path, name: str, content: str | bytes = "Some text.\n") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def names(reading: Reading) -> list[str]:
    return [source.name for source in reading.sources]


def codes(reading: Reading) -> list[ProblemCode]:
    return [problem.code for problem in reading.problems]


def test_a_folder_is_read_recursively_in_order_of_names(tmp_path: Path) -> None:
    for name in ("b.md", "a/z.txt", "a/b.markdown", "A.MD", "code.py", "image.png", "noext"):
        write(tmp_path, name)
    write(tmp_path, "image.png", b"\x89PNG\0")
    reading = read(["."], cwd=tmp_path)
    assert names(reading) == ["A.MD", "a/b.markdown", "a/z.txt", "b.md"]
    assert reading.problems == ()


def test_names_are_relative_inside_the_current_folder_and_as_given_outside(tmp_path: Path) -> None:
    inside, outside = tmp_path / "work", tmp_path / "other"
    write(inside, "docs/a.md")
    write(outside, "b.md")
    paths = [str(inside / "docs"), str(outside / "b.md"), "../other/b.md"]
    reading = read(paths, cwd=inside)
    assert names(reading) == [str(outside / "b.md"), "docs/a.md"]
    assert names(read(["../other"], cwd=inside)) == ["../other/b.md"]
    assert all((inside / name).is_file() for name in names(reading))


def test_two_files_with_one_name_stay_apart(tmp_path: Path) -> None:
    write(tmp_path, "a/readme.md", "One text.")
    write(tmp_path, "b/readme.md", "Another text.")
    assert names(read(["b/readme.md", "a/readme.md"], cwd=tmp_path)) == ["a/readme.md", "b/readme.md"]


def test_a_file_given_twice_is_read_once(tmp_path: Path) -> None:
    write(tmp_path, "a/x.md")
    (tmp_path / "link.md").symlink_to("a/x.md")
    reading = read(["a/x.md", "./a/../a/x.md", "a", ".", "link.md"], cwd=tmp_path)
    assert names(reading) == ["a/x.md"]
    assert reading.problems == ()


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    write(tmp_path, "docs/x.md")
    (tmp_path / "docs/again").symlink_to("..")
    (tmp_path / "docs/self.md").symlink_to("self.md")
    reading = read(["docs"], cwd=tmp_path)
    assert names(reading) == ["docs/x.md"]
    assert codes(reading) == [ProblemCode.UNREADABLE]
    assert "leads to itself" in reading.problems[0].message


def test_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "gone.md").symlink_to("nowhere.md")
    reading = read(["gone.md"], cwd=tmp_path)
    assert reading.problems[0].message == "gone.md: the link leads nowhere"


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (b"", ProblemCode.EMPTY, "empty"),
        (b"\xef\xbb\xbf \n\t\n", ProblemCode.EMPTY, "empty"),
        (b"text\0more", ProblemCode.BINARY, "zero byte at offset 4"),
        (b"one\ntwo \xe9t\xe9\n", ProblemCode.NOT_UTF8, "byte 0xE9 at offset 8, line 2"),
        (b"\xef\xbb\xbfab\r\n\xff", ProblemCode.NOT_UTF8, "byte 0xFF at offset 7, line 2"),
        ("\ufeffhi".encode("utf-16-le"), ProblemCode.NOT_UTF8, "UTF-16"),
    ],
)
def test_a_bad_file_among_good_ones_is_reported_and_skipped(
    tmp_path: Path, content: bytes, code: ProblemCode, says: str
) -> None:
    write(tmp_path, "bad.md", content)
    write(tmp_path, "good.md")
    reading = read(["bad.md", "good.md"], cwd=tmp_path)
    assert names(reading) == ["good.md"]
    assert codes(reading) == [code]
    assert reading.problems[0].message.startswith("bad.md: ")
    assert says in reading.problems[0].message
    assert "\n" not in reading.problems[0].message


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    write(tmp_path, "file.md")
    write(tmp_path, "empty_folder/only.py")
    os.mkfifo(tmp_path / "pipe.md")
    paths = ["gone.md", "file.md/below", "empty_folder", "pipe.md", "nul\0.md"]
    reading = read(paths, cwd=tmp_path)
    assert codes(reading) == [
        ProblemCode.MISSING,
        ProblemCode.MISSING,
        ProblemCode.NO_TEXT_FILES,
        ProblemCode.NOT_A_FILE,
        ProblemCode.UNREADABLE,
    ]
    assert all(len(problem.message.splitlines()) == 1 for problem in reading.problems)


def test_hidden_files_with_our_suffix_are_named_and_hidden_folders_left_alone(tmp_path: Path) -> None:
    write(tmp_path, ".secret.md")
    write(tmp_path, ".git/x.md")
    write(tmp_path, ".env")
    write(tmp_path, "x.md")
    reading = read(["."], cwd=tmp_path)
    assert names(reading) == ["x.md"]
    assert codes(reading) == [ProblemCode.HIDDEN]
    assert names(read([".secret.md"], cwd=tmp_path)) == [".secret.md"]


def test_a_name_that_cannot_be_cited_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "two\nlines.md")
    reading = read(["."], cwd=tmp_path)
    assert codes(reading) == [ProblemCode.BAD_NAME]
    assert "\n" not in reading.problems[0].message


def test_other_suffixes_are_read_when_named(tmp_path: Path) -> None:
    write(tmp_path, "notes.rst")
    assert names(read(["notes.rst"], cwd=tmp_path)) == ["notes.rst"]


def test_standard_input_is_read_once_and_a_file_of_that_name_stays_apart(tmp_path: Path) -> None:
    write(tmp_path, "stdin", "From the file.")
    reading = read(["-", "stdin", "-"], stdin=io.BytesIO(b"From the pipe."), cwd=tmp_path)
    assert [(source.name, source.text) for source in reading.sources] == [
        ("./stdin", "From the file."),
        ("stdin", "From the pipe."),
    ]


def test_sizes_and_counts_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_FILE_BYTES", MIB)
    monkeypatch.setattr(sources, "MAX_TOTAL_BYTES", MIB)
    monkeypatch.setattr(sources, "MAX_FILES", 2)
    write(tmp_path, "a.md", "x" * (MIB + 1))
    write(tmp_path, "b.md", "x" * (MIB - 10))
    write(tmp_path, "c.md", "x" * 11)
    write(tmp_path, "d.md", "x")
    write(tmp_path, "e.md", "x")
    reading = read(["."], cwd=tmp_path)
    assert names(reading) == ["b.md", "d.md"]
    assert codes(reading) == [ProblemCode.TOO_LARGE, ProblemCode.TOO_LARGE, ProblemCode.TOO_MANY]
    assert "1 MiB" in reading.problems[0].message


def test_the_file_to_be_written_is_no_source_of_a_folder(tmp_path: Path) -> None:
    write(tmp_path, "a.md")
    out = write(tmp_path, "brief.md")
    assert names(read(["."], cwd=tmp_path, leave_out=out)) == ["a.md"]


def test_lines_are_counted_as_an_editor_does_and_the_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    path = write(tmp_path, "a.md", "\ufeffone\r\ntwo\x0c still two\u2028still\rthree\n")
    source = read([str(path)], cwd=tmp_path).sources[0]
    assert source.data.startswith(b"\xef\xbb\xbf")
    assert split_lines(source.text) == ["one", "two\x0c still two\u2028still", "three", ""]


def test_standard_input_is_markdown_when_it_looks_like_it() -> None:
    assert is_markdown("stdin", "# Title\n\nText.")
    assert not is_markdown("stdin", "Just a text.")
    assert is_markdown("x.MD", "")
    assert not is_markdown("x.txt", "# Title")
