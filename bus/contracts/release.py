"""What writes into a catalogue: a working version made from a model, and the release that freezes it (SCH-1)."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel

from bus.contracts.catalogue import Catalogue, CatalogueError, Contract
from bus.contracts.check import check_contract, next_minor, retired
from bus.contracts.findings import Finding, Severity
from bus.contracts.json_text import dump
from bus.contracts.judge import BREAKS
from bus.contracts.lint import lint_version
from bus.contracts.lock import LOCK_NAME, Entry, Lock, Release
from bus.contracts.models import load_model, schema_of, version_said
from bus.contracts.version import Number, show_version
from bus.envelope.grammar import is_type_name


class Step(StrEnum):
    """What generation did, or would do, with one contract."""

    SAME = "same"
    WRITTEN = "written"


@dataclass(frozen=True, slots=True)
class Generated:
    """One contract beside its model: the file, its version, and whether they are in step."""

    type: str
    number: Number
    file: str
    step: Step


def generate(catalogue: Catalogue, directory: Path, type: str, reference: str | None, *, write: bool) -> Generated:
    """Brings the working version of a contract into step with its model; with `write` false it only looks.

    `reference` (`module:Name`) is the model of a contract that has none yet; the lock file keeps it. The version is the
    one that the model says (`__contract__`); without one it is the working version, or the next minor when the newest
    version is released and differs. Raises CatalogueError when the version that is meant is released and differs, or is
    older than a released one of its major; ModelError for the model.
    """
    if not is_type_name(type):
        raise CatalogueError(f"{type!r} is not a message type: snake_case, 1 to 64 characters")
    catalogue.refuse_broken({type})
    entry = catalogue.lock.contracts.get(type, Entry())
    contract = catalogue.contracts.get(type)
    if reference is None and entry.model is None:
        raise CatalogueError(f"{type} has no model; say which: bus schema generate {type}=module:Name")
    model = load_model(reference or entry.model or "")
    data = dump(schema_of(model))
    number = _number(contract, model, type, data)
    file = f"{catalogue.place}/{type}/{show_version(number)}.json"
    present = contract.version(number) if contract else None
    is_same = present is not None and present.data.replace(b"\r\n", b"\n") == data
    is_known = reference is None or reference == entry.model
    if is_same and is_known:
        return Generated(type, number, file, Step.SAME)
    if present is not None and present.release is not None and not is_same:
        raise CatalogueError(
            f"{file} was released on {present.released} and stays as it is; "
            f"make the change a new version: {next_minor_of(contract, number)}"
        )
    if write:
        if not is_known:
            lock = catalogue.lock.with_entry(type, replace(entry, model=reference))
            write_file(directory / LOCK_NAME, lock.write())
        if not is_same:
            write_file(directory / type / f"{show_version(number)}.json", data)
    return Generated(type, number, file, Step.WRITTEN)


def release(
    catalogue: Catalogue,
    directory: Path,
    type: str,
    *,
    day: date,
    owner: str | None = None,
    note: str = "",
    accepted: str = "",
    senders: Sequence[str] = (),
    receivers: Sequence[str] = (),
) -> tuple[list[str], list[Finding]]:
    """Freezes the working versions of a contract: writes their digests into the lock file, and the names they retire.

    Returns the versions, and the findings. With an error among them nothing was written. `accepted` says why a version
    that breaks somebody is released all the same; it stays in the lock file. Raises CatalogueError when there is
    nothing to release, or nobody owns it; LockError for names of agents that are none.
    """
    catalogue.refuse_broken({type})
    contract = catalogue.contract(type)
    if not contract.working:
        newest = contract.newest
        raise CatalogueError(
            f"nothing to release: {newest} is the newest version, released on {newest.released}; "
            f"a change goes into {next_minor(contract, newest.number[0])}.json"
        )
    entry = contract.entry
    if owner or senders or receivers:
        entry = replace(
            entry,
            owner=owner or entry.owner,
            senders=tuple(senders) or entry.senders,
            receivers=tuple(receivers) or entry.receivers,
        )
    if not entry.owner:
        raise CatalogueError(f"nobody owns {type}; say who answers for it: --owner TEAM")
    found = check_contract(catalogue, replace(contract, entry=entry))
    findings = [one for one in found if one.rule != "not-released"]
    findings += [one for version in contract.working for one in lint_version(version)]
    findings += _out_of_step(catalogue, contract, directory)
    if accepted:
        findings = [_accepted(one) if one.rule.startswith(BREAKS) else one for one in findings]
    if any(one.severity is Severity.ERROR for one in findings):
        return [], findings
    for version in contract.working:
        entry = entry.released(version.number, Release(version.sha256, day, note, accepted), retired(contract, version))
    lock = catalogue.lock.with_entry(type, entry).write()
    Lock.read(lock)
    write_file(directory / LOCK_NAME, lock)
    return [str(version) for version in contract.working], findings


def next_minor_of(contract: Contract | None, number: Number) -> str:
    """What to write into a model to get the next minor, in words."""
    minor = next_minor(contract, number[0]) if contract else show_version(number)
    name = contract.type if contract else ""
    return f'set __contract__ = "{name}@{minor}" in the model, or the next major when it breaks somebody'


def write_file(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all. Raises CatalogueError when the folder does not let it."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(exist_ok=True)
        if path.is_symlink() or path.parent.is_symlink():
            raise CatalogueError(f"{path} is a symbolic link, which is not followed; put the file itself there")
        fresh.write_bytes(data)
        fresh.replace(path)
    except OSError as problem:
        fresh.unlink(missing_ok=True)
        raise CatalogueError(f"{path} cannot be written: {problem.strerror}") from None


def _number(contract: Contract | None, model: type[BaseModel], type: str, data: bytes) -> Number:
    said = version_said(model, type)
    if contract is None:
        return said or (1, 0)
    if said is not None:
        newer = [one for one in contract.versions if one.number > said and one.number[0] == said[0] and one.release]
        if newer and contract.version(said) is None:
            raise CatalogueError(f"{type} {show_version(said)} would come before {newer[-1]}, which is released")
        return said
    newest = contract.newest
    if newest.release is None or newest.data.replace(b"\r\n", b"\n") == data:
        return newest.number
    major, minor = newest.number
    return major, minor + 1


def _out_of_step(catalogue: Catalogue, contract: Contract, directory: Path) -> list[Finding]:
    if contract.entry.model is None:
        return []
    made = generate(catalogue, directory, contract.type, None, write=False)
    if made.step is Step.SAME:
        return []
    mend = f"bus schema generate {contract.type}"
    message = f"it is not what {contract.entry.model} says"
    return [Finding("model-differs", Severity.ERROR, made.file, message, mend)]


def _accepted(finding: Finding) -> Finding:
    return replace(finding, severity=Severity.WARNING)
