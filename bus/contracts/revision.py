"""A catalogue as it was at a git revision: read with git, without touching the work tree."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from bus.contracts.catalogue import MAX_FILES, MAX_TOTAL_BYTES, Catalogue, CatalogueError

GIT_TIMEOUT_S: Final = 60.0
_PLAIN_FILES: Final = ("100644", "100755")


def at_revision(directory: Path, revision: str) -> Catalogue:
    """The catalogue of a folder at a revision (`main`, `HEAD~1`, a tag); empty when the folder was not there then.

    Raises CatalogueError when git is missing, the folder is in no repository, or there is no such revision.
    """
    top = Path(_git(directory, "rev-parse", "--show-toplevel").decode().rstrip("\n"))
    commit = _commit(directory, revision)
    try:
        inside = directory.resolve().relative_to(top.resolve()).as_posix()
    except ValueError:
        raise CatalogueError(f"{directory} is not inside the repository {top}") from None
    tree = commit if inside == "." else f"{commit}:{inside}"
    if inside != "." and not _git(directory, "ls-tree", "-d", "--full-tree", commit, "--", inside).strip():
        return Catalogue.of_files(directory.as_posix(), {})
    files: list[tuple[str, str]] = []
    total = 0
    for line in _git(directory, "ls-tree", "-r", "-z", "-l", "--full-tree", tree).split(b"\0"):
        if not line:
            continue
        facts, _, name = line.partition(b"\t")
        mode, _, blob, size = facts.decode().split()
        if mode in _PLAIN_FILES:
            total += int(size)
            files.append((name.decode("utf-8", "surrogateescape"), blob))
    if len(files) > MAX_FILES or total > MAX_TOTAL_BYTES:
        raise CatalogueError(f"{directory} at {revision} has over {MAX_FILES} files or {MAX_TOTAL_BYTES} bytes")
    return Catalogue.of_files(directory.as_posix(), _contents(directory, files))


def _commit(directory: Path, revision: str) -> str:
    try:
        found = _git(directory, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except CatalogueError:
        message = f"git knows no revision {revision!r} here; in CI fetch it first (fetch-depth: 0)"
        raise CatalogueError(message) from None
    return found.decode().strip().splitlines()[-1]


def _contents(directory: Path, files: list[tuple[str, str]]) -> dict[str, bytes]:
    """The bytes of all blobs, by one process: a catalogue of thousands of files takes a second, not minutes."""
    wanted = [(name, blob) for name, blob in files if name.endswith(".json")]
    out = _git(directory, "cat-file", "--batch", stdin="".join(f"{blob}\n" for _, blob in wanted).encode())
    found, at = {}, 0
    for name, _ in wanted:
        end = out.index(b"\n", at)
        size = int(out[at:end].split()[2])
        found[name] = out[end + 1 : end + 1 + size]
        at = end + 1 + size + 1
    return found


def _git(directory: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments],
            input=stdin,
            capture_output=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise CatalogueError("git is not installed, so --since cannot be answered; install it") from None
    except subprocess.TimeoutExpired:
        raise CatalogueError(f"git {arguments[0]} took over {GIT_TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise CatalogueError(f"git {arguments[0]} failed: {said[0] if said else 'it said nothing'}")
    return done.stdout
