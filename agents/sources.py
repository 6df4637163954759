"""Reads what the user names (FILE, DIR or `-`) into sources, and says in one line what could not be read.

A source has a name that is unique, stable for the same input, and opens from the current folder: relative
inside of it, else as the user wrote it. Nothing here raises for bad input; it becomes a `Problem`.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

MIB = 1024 * 1024
MAX_FILE_BYTES = 32 * MIB
MAX_TOTAL_BYTES = 64 * MIB
MAX_FILES = 1000
MAX_NAME_CHARS = 1024
MARKDOWN_SUFFIXES = frozenset({".md", ".markdown"})
SUFFIXES = MARKDOWN_SUFFIXES | {".txt"}
STDIN = "stdin"

_LINE_BREAK = re.compile(r"\r\n|\n|\r")
_MARKDOWN_SIGN = re.compile(r"^(#{1,6} |```|~~~|[*-] \S)|\]\(", re.MULTILINE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class ProblemCode(StrEnum):
    """What can be wrong with a path."""

    MISSING = "missing"
    UNREADABLE = "unreadable"
    NOT_A_FILE = "not_a_file"
    BAD_NAME = "bad_name"
    EMPTY = "empty"
    BINARY = "binary"
    NOT_UTF8 = "not_utf8"
    TOO_LARGE = "too_large"
    TOO_MANY = "too_many"
    HIDDEN = "hidden"
    NO_TEXT_FILES = "no_text_files"


@dataclass(frozen=True, slots=True)
class Problem:
    """A path that gave no source. `message` is one line: what, where, what to do."""

    code: ProblemCode
    path: str
    message: str


@dataclass(frozen=True, slots=True)
class Source:
    """One readable document: its name in citations, and its bytes as they are in the file."""

    name: str
    data: bytes

    @property
    def text(self) -> str:
        """The text, without a byte order mark; line ends are kept."""
        return self.data.decode("utf-8-sig")


@dataclass(frozen=True, slots=True)
class Reading:
    """What came of the paths: sources in the order of their names, problems in the order met."""

    sources: tuple[Source, ...]
    problems: tuple[Problem, ...]


def split_lines(text: str) -> list[str]:
    """Lines as an editor numbers them: only CR LF, LF and CR end a line (not form feed, not U+2028)."""
    return _LINE_BREAK.split(text)


def is_markdown(name: str, text: str) -> bool:
    """By suffix; standard input has none, so there its content decides."""
    if name == STDIN:
        return _MARKDOWN_SIGN.search(text) is not None
    return Path(name).suffix.lower() in MARKDOWN_SUFFIXES


def read(
    paths: Sequence[str],
    *,
    stdin: BinaryIO | None = None,
    cwd: Path | None = None,
    leave_out: Path | None = None,
) -> Reading:
    """Reads every path; `-` is `stdin`. In a folder `leave_out` (the file to be written) is passed over.

    A file named twice, also through a link or its folder, is read once.
    """
    return _Reader(stdin=stdin, cwd=cwd or Path.cwd(), leave_out=leave_out).read(paths)


class _Reader:
    def __init__(self, *, stdin: BinaryIO | None, cwd: Path, leave_out: Path | None) -> None:
        self._stdin = stdin
        self._cwd = cwd
        self._leave_out = os.path.realpath(leave_out) if leave_out else None
        self._seen: set[str] = set()
        self._total_bytes = 0
        self._sources: list[Source] = []
        self._problems: list[Problem] = []

    def read(self, paths: Sequence[str]) -> Reading:
        for path in paths:
            if path == "-":
                self._read_stdin()
            else:
                self._read_path(path)
        return Reading(tuple(sorted(self._sources, key=lambda source: source.name)), tuple(self._problems))

    def _report(self, code: ProblemCode, path: str, what: str) -> None:
        shown = _CONTROL.sub("?", path).encode("utf-8", "replace").decode()
        self._problems.append(Problem(code, shown, f"{shown}: {what}"))

    def _read_stdin(self) -> None:
        if STDIN in self._seen or self._stdin is None:
            return
        self._seen.add(STDIN)
        try:
            data = self._stdin.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            self._report(ProblemCode.UNREADABLE, STDIN, _why(error))
            return
        self._take(STDIN, data)

    def _read_path(self, path: str) -> None:
        full = self._cwd / path
        try:
            mode = full.stat().st_mode
        except (OSError, ValueError) as error:
            self._cannot_open(path, full, error)
            return
        if stat.S_ISDIR(mode):
            self._read_folder(path, full)
        else:
            self._read_file(path, full, mode)

    def _cannot_open(self, path: str, full: Path, error: OSError | ValueError) -> None:
        if isinstance(error, FileNotFoundError) and full.is_symlink():
            self._report(ProblemCode.MISSING, path, "the link leads nowhere")
        elif isinstance(error, FileNotFoundError | NotADirectoryError):
            self._report(ProblemCode.MISSING, path, "no such file or folder; check the spelling")
        else:
            self._report(ProblemCode.UNREADABLE, path, _why(error))

    def _read_folder(self, path: str, full: Path) -> None:
        found = 0
        for file in self._walk(full, {os.path.realpath(full)}):
            if os.path.realpath(file) == self._leave_out:
                continue
            found += 1
            shown = str(Path(path) / file.relative_to(full))
            if file.name.startswith("."):
                self._report(ProblemCode.HIDDEN, shown, "hidden; name the file itself to have it read")
                continue
            try:
                mode = file.stat().st_mode
            except OSError as error:
                self._cannot_open(shown, file, error)
                continue
            self._read_file(shown, file, mode)
        if not found:
            kinds = ", ".join(sorted(SUFFIXES))
            self._report(ProblemCode.NO_TEXT_FILES, path, f"no text file in this folder ({kinds})")

    def _walk(self, folder: Path, visited: set[str]) -> Iterator[Path]:
        """Files with our suffixes, sorted; hidden folders are left out, a folder met again (a loop) too."""
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            self._report(ProblemCode.UNREADABLE, str(folder), _why(error))
            return
        for entry in entries:
            if _is_folder(entry):
                real = os.path.realpath(entry.path)
                if not entry.name.startswith(".") and real not in visited:
                    visited.add(real)
                    yield from self._walk(Path(entry.path), visited)
            elif Path(entry.name).suffix.lower() in SUFFIXES:
                yield Path(entry.path)

    def _read_file(self, path: str, full: Path, mode: int) -> None:
        real = os.path.realpath(full)
        if real in self._seen:
            return
        self._seen.add(real)
        name = self._name(path, full)
        if name is None:
            self._report(
                ProblemCode.BAD_NAME,
                path,
                "this name cannot be cited (control characters, not UTF-8 or too long)",
            )
        elif not stat.S_ISREG(mode):
            self._report(ProblemCode.NOT_A_FILE, path, "not a regular file; use - to read from a pipe")
        else:
            try:
                with full.open("rb") as file:
                    data = file.read(MAX_FILE_BYTES + 1)
            except OSError as error:
                self._report(ProblemCode.UNREADABLE, path, _why(error))
                return
            self._take(name, data)

    def _name(self, path: str, full: Path) -> str | None:
        lexical = Path(os.path.realpath(full)) if ".." in Path(path).parts else full
        for candidate, folder in ((lexical, self._cwd), (lexical, Path(os.path.realpath(self._cwd)))):
            if candidate.is_relative_to(folder):
                name = candidate.relative_to(folder).as_posix()
                break
        else:
            name = Path(path).as_posix()
        if name == STDIN:
            name = f"./{name}"
        try:
            name.encode()
        except UnicodeEncodeError:
            return None
        return None if _CONTROL.search(name) or len(name) > MAX_NAME_CHARS else name

    def _take(self, name: str, data: bytes) -> None:
        problem = _fault(data)
        if problem is None and self._total_bytes + len(data) > MAX_TOTAL_BYTES:
            problem = (
                ProblemCode.TOO_LARGE,
                f"left out: all sources together may have {MAX_TOTAL_BYTES // MIB} MiB; name fewer of them",
            )
        if problem is None and len(self._sources) >= MAX_FILES:
            problem = (ProblemCode.TOO_MANY, f"left out: at most {MAX_FILES} files; name fewer of them")
        if problem is not None:
            self._report(problem[0], name, problem[1])
            return
        self._total_bytes += len(data)
        self._sources.append(Source(name, data))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _fault(data: bytes) -> tuple[ProblemCode, str] | None:
    """What keeps these bytes from being a text, if anything does."""
    if len(data) > MAX_FILE_BYTES:
        return ProblemCode.TOO_LARGE, f"larger than {MAX_FILE_BYTES // MIB} MiB; split it"
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return ProblemCode.NOT_UTF8, "not UTF-8 but UTF-16; convert it to UTF-8 first"
    zero = data.find(b"\0")
    if zero >= 0:
        return ProblemCode.BINARY, f"binary, not text (zero byte at offset {zero})"
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The codec drops the byte order mark before it counts.
        offset = error.start + (3 if data.startswith(b"\xef\xbb\xbf") else 0)
        line = len(re.findall(rb"\r\n|\n|\r", data[:offset])) + 1
        where = f"byte 0x{data[offset]:02X} at offset {offset}, line {line}"
        return ProblemCode.NOT_UTF8, f"not UTF-8: {where}; convert it to UTF-8 first"
    if not text.strip():
        return ProblemCode.EMPTY, "empty"
    return None


def _why(error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        if error.errno == errno.ELOOP:
            return "the link leads to itself"
        return f"cannot be read: {os.strerror(error.errno).lower()}"
    return f"cannot be read: {error}"
