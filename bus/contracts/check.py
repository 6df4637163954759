"""The check of a catalogue (SCH-2): released files stay, numbers have no gaps, retired names stay away, nobody breaks.

Pure: it takes catalogues that were read and gives findings. It runs offline, writes nothing, and imports no model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from bus.contracts.catalogue import Catalogue, Contract, Version
from bus.contracts.fields import fields_of
from bus.contracts.findings import Finding, Severity
from bus.contracts.judge import judge_all
from bus.contracts.lock import LOCK_NAME
from bus.contracts.version import show_version


def check(
    catalogue: Catalogue,
    *,
    types: Collection[str] | None = None,
    since: Catalogue | None = None,
    mode: str | None = None,
    strict: bool = False,
    workers: int = 1,
) -> list[Finding]:
    """The findings of a whole catalogue, or of some message types, sorted by file.

    With `since` (the catalogue as it was) only contracts that changed are looked at, and what was released then must be
    there unchanged, in the lock file too. `mode` and `strict` stand above what the lock says. `workers` processes share
    the comparisons of a large catalogue.
    """
    chosen = set(catalogue.contracts if types is None else types)
    findings = catalogue.problems_of(types if types is None else chosen)
    if since is not None:
        findings += kept(since, catalogue, types=types)
        chosen &= changed(since, catalogue)
    contracts = [contract for type, contract in catalogue.contracts.items() if type in chosen]
    verdicts = judge_all(contracts, mode=mode, strict=strict, workers=workers)
    for contract, verdict in zip(contracts, verdicts, strict=True):
        findings += [*_files(catalogue, contract), *verdict]
    return sorted(dict.fromkeys(findings), key=lambda one: one.file)


def check_contract(catalogue: Catalogue, contract: Contract) -> list[Finding]:
    """The findings of one contract, its files having been read well."""
    return [*_files(catalogue, contract), *judge_all([contract], mode=None, strict=False)[0]]


def _files(catalogue: Catalogue, contract: Contract) -> list[Finding]:
    if catalogue.is_unlocked:
        return []  # told once; nothing is known of its owner and releases
    return [
        *_owned(catalogue, contract),
        *_untouched(contract),
        *_numbers(contract, catalogue.problems),
        *_reserved(contract),
        *_bumped(contract),
    ]


def changed(since: Catalogue, now: Catalogue) -> set[str]:
    """The message types whose files or lock entry differ between two states of a catalogue."""
    return {
        type
        for type, contract in now.contracts.items()
        if (old := since.contracts.get(type)) is None
        or old.entry != contract.entry
        or [(one.number, one.sha256) for one in old.versions] != [(one.number, one.sha256) for one in contract.versions]
    }


def kept(since: Catalogue, now: Catalogue, *, types: Collection[str] | None = None) -> list[Finding]:
    """Promises of `since` that `now` no longer keeps: releases, owners' rules, retired names."""
    found: list[Finding] = []
    # What no lock file named then was no promise, so its troubles are nobody's.
    broken = since.problems_of(since.lock.contracts)
    if broken:
        worst = broken[0]
        found.append(
            Finding(
                "since-unreadable",
                Severity.WARNING,
                worst.file,
                f"the catalogue was already broken then, so not all of it can be compared: {worst.message}",
            )
        )
    lock_file = f"{now.place}/{LOCK_NAME}"
    if now.is_unlocked:
        return found
    for type, entry in since.lock.contracts.items():
        if types is not None and type not in types:
            continue
        fresh = now.lock.contracts.get(type)
        if fresh is None:
            if entry.versions:
                message = f"the contract {type} was released and is gone from the lock file"
                found.append(Finding("release-withdrawn", Severity.ERROR, lock_file, message, _RESTORE, type))
            continue
        for number, release in entry.versions.items():
            now_release = fresh.versions.get(number)
            at = f"{type} {show_version(number)}"
            if now_release is None:
                message = f"{at} was released on {release.released} and is gone from the lock file"
                found.append(Finding("release-withdrawn", Severity.ERROR, lock_file, message, _RESTORE, type))
            elif (now_release.sha256, now_release.released) != (release.sha256, release.released):
                message = f"{at} was released on {release.released}; its digest or day has been rewritten"
                found.append(Finding("release-rewritten", Severity.ERROR, lock_file, message, _RESTORE, type))
        for path in entry.reserved.keys() - fresh.reserved.keys():
            message = f"the retired name {path} of {type} is not reserved any more"
            found.append(Finding("name-freed", Severity.ERROR, lock_file, message, _RESTORE, type))
        if _is_weaker(fresh.mode, entry.mode) or (entry.strict and not fresh.strict):
            message = f"{type} promised {_told(entry.mode, entry.strict)} and now {_told(fresh.mode, fresh.strict)}"
            mend = "let the readers and writers of the type agree to it first"
            found.append(Finding("mode-weakened", Severity.WARNING, lock_file, message, mend, type))
    return found


_RESTORE: Final = "restore it from git; what is released stays, since others build on it"


def _owned(catalogue: Catalogue, contract: Contract) -> Iterator[Finding]:
    lock_file = f"{catalogue.place}/{LOCK_NAME}"
    if not contract.is_locked:
        mend = f"bus schema release {contract.type} --owner TEAM, when it is ready"
        message = f"{contract.type} is not in the lock file: nobody owns it and nothing of it is released"
        yield Finding("not-released", Severity.NOTICE, contract.newest.file, message, mend)
    elif not contract.entry.owner:
        message = f"{contract.type} has no owner"
        yield Finding("owner-missing", Severity.WARNING, lock_file, message, "write who answers for it", contract.type)


def _untouched(contract: Contract) -> Iterator[Finding]:
    for version in contract.versions:
        if version.release is not None and version.sha256 != version.release.sha256:
            yield Finding(
                "released-changed",
                Severity.ERROR,
                version.file,
                f"it was released on {version.released} and has been changed since",
                f"git checkout the file, and put the change into {next_minor(contract, version.number[0])}.json",
            )


def next_minor(contract: Contract, major: int) -> str:
    """The number of the next minor of a major, as text: `1.3`."""
    numbers = [one.number for one in contract.of_major(major)] + [
        one for one in contract.entry.versions if one[0] == major
    ]
    return show_version((major, max(minor for _, minor in numbers) + 1)) if numbers else show_version((major, 0))


def _numbers(contract: Contract, problems: Collection[Finding]) -> Iterator[Finding]:
    """Gaps, and more than one working version of a major; files that cannot be read still hold their number."""
    unread = {one.file for one in problems}
    folder = contract.newest.file.rsplit("/", 1)[0]
    first = contract.versions[0].number
    for before, after in zip(contract.versions, contract.versions[1:], strict=False):
        same_major = before.number[0] == after.number[0]
        expected = (before.number[0], before.number[1] + 1) if same_major else (before.number[0] + 1, 0)
        if after.number != expected and f"{folder}/{show_version(expected)}.json" not in unread:
            message = f"{show_version(expected)} is missing between {show_version(before.number)} and it"
            mend = f"name it {show_version(expected)}.json, or add the missing version"
            yield Finding("version-gap", Severity.ERROR, after.file, message, mend)
    if not contract.entry.versions and first not in ((0, 1), (1, 0)) and not contract.is_locked:
        message = f"a new contract begins at 1.0, not at {show_version(first)}"
        yield Finding("version-gap", Severity.WARNING, contract.versions[0].file, message, "name it 1.0.json")
    for major in contract.majors:
        of_major = contract.of_major(major)
        working = [one for one in of_major if one.release is None]
        if len(working) > 1:
            message = f"{show_version(working[0].number)} is not released either: one working version is enough"
            mend = f"put both changes into {show_version(working[0].number)}.json, or release it first"
            yield Finding("two-working-versions", Severity.ERROR, working[1].file, message, mend)
        elif working and working[0] is not of_major[-1]:
            newer = of_major[-1]
            message = f"it is not released, and {show_version(newer.number)} after it is"
            yield Finding("released-out-of-order", Severity.ERROR, working[0].file, message, "release or remove it")


def _reserved(contract: Contract) -> Iterator[Finding]:
    """Retired names that come back: the version before has not got them, a working version has."""
    if not contract.entry.reserved:
        return
    for before, version in zip((None, *contract.versions), contract.versions, strict=False):
        if version.release is not None:
            continue
        paths = fields_of(version.schema).paths
        known = fields_of(before.schema).paths if before else {}
        for path, why in contract.entry.reserved.items():
            if path in paths and path not in known:
                message = f"the name is retired ({why}) and may not come back with another meaning"
                yield Finding("name-reserved", Severity.ERROR, version.file, message, "choose another name", path)


def _bumped(contract: Contract) -> Iterator[Finding]:
    """A new major is no breach, but its readers need an upcaster, which no file of the catalogue shows."""
    for version in contract.working:
        major = version.number[0]
        if version.number[1] == 0 and major - 1 in contract.majors:
            message = f"a new major: readers refuse major {major - 1} unless they register an upcaster to {major}"
            mend = (
                f'write @agent.upcast("{contract.type}", {major - 1}) at every receiver before anybody sends {major}.0'
            )
            yield Finding("major-bump", Severity.NOTICE, version.file, message, mend)


def retired(contract: Contract, version: Version) -> dict[str, str]:
    """The fields that the version before it had and it has not, with why: what the lock file reserves."""
    older = [one for one in contract.versions if one.number < version.number]
    if not older:
        return {}
    now = fields_of(version.schema).paths
    why = f"removed in {show_version(version.number)}"
    return {path: why for path in fields_of(older[-1].schema).paths if path not in now}


def _is_weaker(now: str, before: str) -> bool:
    directions = {"backward": {"b"}, "forward": {"f"}, "full": {"b", "f"}}
    lost = directions[before.removesuffix("_transitive")] - directions[now.removesuffix("_transitive")]
    return bool(lost) or (before.endswith("_transitive") and not now.endswith("_transitive"))


def _told(mode: str, strict: bool) -> str:
    return f"{mode}{', strict' if strict else ''}"
