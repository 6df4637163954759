"""A catalogue of contracts (SCH-1): `<type>/<major>.<minor>.json` and `lock.json`, from a folder or a git revision.

Reading is pure and offline: nothing is written, nothing is imported, no reference is fetched. Whatever is wrong with a
file is a finding, so that one broken file does not hide the others.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Final

from bus.contracts.findings import Finding, Severity
from bus.contracts.json_text import MAX_FILE_BYTES, parse
from bus.contracts.lock import LOCK_NAME, Entry, Lock, LockError, Release
from bus.contracts.version import Number, parse_version, show_version
from bus.contracts.well_formed import NotASchema, check_schema
from bus.envelope.grammar import is_type_name

MAX_FILES: Final = 50_000
MAX_TOTAL_BYTES: Final = 256 * 1024 * 1024
_NO_CONTRACT: Final = (".", "_")
"""First characters of names that tools make (`.git`, `__pycache__`)."""


class CatalogueError(Exception):
    """The catalogue cannot be used at all, or the question makes no sense; one line with what to do."""


@dataclass(frozen=True, slots=True)
class Version:
    """One file of a contract. `release` is what the lock says of it, None for a working version."""

    type: str
    number: Number
    schema: Mapping[str, Any] | bool
    data: bytes
    file: str
    release: Release | None = None

    @property
    def sha256(self) -> str:
        """The digest of the file; line ends count as LF, whatever the checkout made of them."""
        return digest(self.data)

    @property
    def released(self) -> date | None:
        """The day of its release, None for a working version."""
        return self.release.released if self.release else None

    def __str__(self) -> str:
        return f"{self.type}@{show_version(self.number)}"


@dataclass(frozen=True, slots=True)
class Contract:
    """A message type with its versions, oldest first. `entry` is empty when the lock does not know it yet."""

    type: str
    entry: Entry
    versions: tuple[Version, ...]
    is_locked: bool = True

    @property
    def newest(self) -> Version:
        """The version with the highest number."""
        return self.versions[-1]

    def version(self, number: Number) -> Version | None:
        """The version of a number, None without one."""
        return next((one for one in self.versions if one.number == number), None)

    @property
    def working(self) -> tuple[Version, ...]:
        """The versions that are not released."""
        return tuple(one for one in self.versions if one.release is None)

    def of_major(self, major: int) -> tuple[Version, ...]:
        """The versions of one major, oldest first."""
        return tuple(one for one in self.versions if one.number[0] == major)

    @property
    def majors(self) -> list[int]:
        """The majors that there are, ascending."""
        return sorted({one.number[0] for one in self.versions})


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All contracts by message type, sorted, and what is wrong with the files. `place` is how a report names it."""

    place: str
    lock: Lock
    contracts: Mapping[str, Contract]
    problems: tuple[Finding, ...] = field(default=())

    @classmethod
    def read(cls, directory: Path) -> Catalogue:
        """Reads a folder. Raises CatalogueError when it is none, or too large to be a catalogue."""
        if not directory.is_dir():
            raise CatalogueError(f"{directory} is not a folder; --catalogue names the folder that holds {LOCK_NAME}")
        place = directory.as_posix()
        lock, found = _read_lock(_file(directory / LOCK_NAME, place), place)
        files, problems = _walk(directory, place, lock.ignore)
        return _assemble(place, lock, files, [*found, *problems])

    @classmethod
    def of_files(cls, place: str, files: Mapping[str, bytes]) -> Catalogue:
        """A catalogue from the content of its files by their path inside it, as a git revision has them."""
        lock, problems = _read_lock(files.get(LOCK_NAME), place)
        kept = {}
        for path, data in files.items():
            parts = path.split("/")
            if len(parts) == 2 and parts[0] not in lock.ignore and not parts[0].startswith(_NO_CONTRACT):
                kept[parts[0], parts[1]] = data
        return _assemble(place, lock, kept, problems)

    def problems_of(self, types: Collection[str] | None) -> list[Finding]:
        """What is wrong with the files of these message types (None: all), and with the lock file, which is for all."""
        if types is None:
            return list(self.problems)
        return [one for one in self.problems if (folder := self.folder_of(one)) == LOCK_NAME or folder in types]

    def folder_of(self, finding: Finding) -> str:
        """The name in the catalogue that a finding is about: a message type's folder, or the lock file."""
        return finding.file.removeprefix(f"{self.place}/").split("/")[0]

    @property
    def is_unlocked(self) -> bool:
        """Whether there is a lock file that cannot be read: then nothing is known of what is released."""
        return any(one.rule == "lock-unreadable" for one in self.problems)

    def refuse_broken(self, types: Collection[str]) -> None:
        """Raises CatalogueError when `problems_of` has any: nothing is written beside files that cannot be read."""
        for problem in self.problems_of(types):
            raise CatalogueError(f"{problem.file}: {problem.message}; {problem.mend}")

    def contract(self, type: str) -> Contract:
        """The contract of a message type. Raises CatalogueError that names the ones there are."""
        found = self.contracts.get(type)
        if found is None:
            known = ", ".join(self.contracts) or "none"
            raise CatalogueError(f"{self.place} has no contract {type!r}; it has {known[:300]}")
        return found


def digest(data: bytes) -> str:
    """SHA-256 of a file with LF line ends, in lower-case hex: what `sha256sum` says of it."""
    return hashlib.sha256(data.replace(b"\r\n", b"\n")).hexdigest()


def _read_lock(data: bytes | None, place: str) -> tuple[Lock, list[Finding]]:
    if data is None:
        return Lock(), []
    try:
        return Lock.read(data), []
    except LockError as problem:
        mend = "mend it by hand; git shows how it was"
        return Lock(), [Finding("lock-unreadable", Severity.ERROR, f"{place}/{LOCK_NAME}", str(problem), mend)]


def _file(path: Path, place: str) -> bytes | None:
    """The bytes of the lock file, None without one. Raises CatalogueError for a link or what cannot be read."""
    try:
        kind = path.lstat()
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise CatalogueError(f"{path} cannot be read: {problem.strerror}") from None
    if not stat.S_ISREG(kind.st_mode):
        raise CatalogueError(f"{place}/{path.name} is not a plain file; put the file itself there")
    if kind.st_size > MAX_FILE_BYTES:
        raise CatalogueError(f"{place}/{path.name} has {kind.st_size} bytes; the limit is {MAX_FILE_BYTES}")
    try:
        return path.read_bytes()
    except OSError as problem:
        raise CatalogueError(f"{path} cannot be read: {problem.strerror}") from None


def _walk(directory: Path, place: str, ignore: Iterable[str]) -> tuple[dict[tuple[str, str], bytes], list[Finding]]:
    """The files of every contract's folder; links are followed nowhere."""
    files: dict[tuple[str, str], bytes] = {}
    problems: list[Finding] = []
    left = set(ignore)
    total = 0
    for folder in _sorted(directory, place):
        if folder.name in left or folder.name.startswith(_NO_CONTRACT):
            continue
        if folder.is_symlink():
            problems.append(_is_link(f"{place}/{folder.name}"))
            continue
        if not folder.is_dir(follow_symlinks=False):
            continue
        for one in _sorted(Path(folder.path), f"{place}/{folder.name}"):
            shown = f"{place}/{folder.name}/{one.name}"
            if one.name.startswith(_NO_CONTRACT):
                continue
            if one.is_symlink():
                problems.append(_is_link(shown))
            elif not one.is_file(follow_symlinks=False):
                problems.append(_stray(shown, "it is not a file"))
            elif (size := one.stat(follow_symlinks=False).st_size) > MAX_FILE_BYTES:
                problems.append(_too_large(shown, size))
            else:
                total += size
                if len(files) >= MAX_FILES or total > MAX_TOTAL_BYTES:
                    raise CatalogueError(
                        f"{place} has over {MAX_FILES} files or {MAX_TOTAL_BYTES} bytes; is it a catalogue?"
                    )
                try:
                    files[folder.name, one.name] = Path(one.path).read_bytes()
                except OSError as problem:
                    problems.append(_unreadable(shown, f"it cannot be read: {problem.strerror}"))
    return files, problems


def _sorted(directory: Path, place: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as found:
            yield from sorted(found, key=lambda one: one.name)
    except OSError as problem:
        raise CatalogueError(f"{place} cannot be read: {problem.strerror}") from None


def _assemble(place: str, lock: Lock, files: Mapping[tuple[str, str], bytes], problems: list[Finding]) -> Catalogue:
    versions: dict[str, list[Version]] = {}
    bad_folders = set()
    for (folder, name), data in files.items():
        shown = f"{place}/{folder}/{name}"
        number = parse_version(name.removesuffix(".json")) if name.endswith(".json") else None
        if not is_type_name(folder):
            if folder not in bad_folders:
                bad_folders.add(folder)
                mend = f"rename it to snake_case, or add it to `ignore` in {place}/{LOCK_NAME} if it holds no contract"
                message = "the folder's name is not a message type"
                problems.append(Finding("bad-name", Severity.ERROR, f"{place}/{folder}", message, mend))
        elif number is None:
            problems.append(_stray(shown, "its name is not a version such as 1.0.json"))
        else:
            entry = lock.contracts.get(folder, Entry())
            version = _version(folder, number, data, shown, entry.versions.get(number), problems)
            if version is not None:
                versions.setdefault(folder, []).append(version)
    contracts = {}
    for type in sorted(versions):
        entry = lock.contracts.get(type, Entry())
        ordered = tuple(sorted(versions[type], key=lambda one: one.number))
        contracts[type] = Contract(type, entry, ordered, is_locked=type in lock.contracts)
    problems += _missing(place, lock, {(folder, name) for folder, name in files}, problems)
    return Catalogue(place, lock, contracts, tuple(sorted(problems, key=lambda one: (one.file, one.rule))))


def _version(
    type: str, number: Number, data: bytes, shown: str, release: Release | None, problems: list[Finding]
) -> Version | None:
    try:
        schema = parse(data)
        check_schema(schema)
    except NotASchema as problem:
        problems.append(Finding(problem.rule, Severity.ERROR, shown, str(problem), problem.mend, problem.path))
    except ValueError as problem:
        problems.append(_unreadable(shown, str(problem)))
    else:
        return Version(type, number, schema, data, shown, release)
    return None


def _missing(place: str, lock: Lock, present: set[tuple[str, str]], known: list[Finding]) -> list[Finding]:
    """Versions that the lock has and the folder has not; one that is a link or too large is told already."""
    told = {finding.file for finding in known}
    found = []
    for type, entry in lock.contracts.items():
        for number, release in entry.versions.items():
            file = f"{place}/{type}/{show_version(number)}.json"
            if (type, f"{show_version(number)}.json") not in present and file not in told:
                message = f"it was released on {release.released} and is missing"
                mend = "restore it from git; a released version stays, since messages of it may still be stored"
                found.append(Finding("released-missing", Severity.ERROR, file, message, mend))
    return found


def _unreadable(file: str, message: str) -> Finding:
    return Finding("unreadable", Severity.ERROR, file, message, "mend the file")


def _stray(file: str, why: str) -> Finding:
    mend = "name it <major>.<minor>.json, or move it out of the contract's folder"
    return Finding("stray-file", Severity.ERROR, file, why, mend)


def _is_link(file: str) -> Finding:
    mend = "put the file itself there; a link can lead out of the catalogue"
    return Finding("symbolic-link", Severity.ERROR, file, "it is a symbolic link, which is not followed", mend)


def _too_large(file: str, size: int) -> Finding:
    message = f"it has {size} bytes; the limit is {MAX_FILE_BYTES}"
    return Finding("too-large", Severity.ERROR, file, message, "a contract is for people; make it smaller")
