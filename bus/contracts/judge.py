"""Each version of a contract against the ones before it: the engine's verdicts as findings (SCH-2)."""

from __future__ import annotations

import json
import multiprocessing
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Final

from bus.contracts.catalogue import Contract, Version
from bus.contracts.compare import Schema, compare, prepare
from bus.contracts.compatibility.explain import Change
from bus.contracts.compatibility.values import CannotTell
from bus.contracts.findings import Finding, Severity
from bus.contracts.version import show_version

MAX_VALUE_CHARS: Final = 80
WORTH_SHARING: Final = 2000
BREAKS: Final = "breaks-"
_TRANSITIVE: Final = "_transitive"
_WHO: Final = {
    "none": ("changed", "nobody breaks"),
    "old_readers": (f"{BREAKS}old-readers", "readers of the old version cannot read the new one"),
    "new_readers": (f"{BREAKS}new-readers", "readers of the new version cannot read the old one"),
    "both": (f"{BREAKS}both", "neither version's readers can read the other"),
}
_SEVERITIES: Final = {"error": Severity.ERROR, "warning": Severity.WARNING, "info": Severity.NOTICE}


def judge(contract: Contract, *, mode: str, strict: bool) -> list[Finding]:
    """What breaks whom inside each major: one finding a change, naming every older version that it breaks.

    `mode` is one of the lock file's. What was accepted at its release is a warning. Harmless changes are left out.
    """
    found: list[Finding] = []
    for major in contract.majors:
        versions = [(version, _prepared(version.schema)) for version in contract.of_major(major)]
        for position, version in enumerate(versions):
            older = versions[:position] if mode.endswith(_TRANSITIVE) else versions[max(position - 1, 0) : position]
            found += _judge_version(version, older, mode=mode.removesuffix(_TRANSITIVE), strict=strict)
    return found


def judge_all(
    contracts: Sequence[Contract], *, mode: str | None, strict: bool, workers: int = 1
) -> list[list[Finding]]:
    """`judge` for many contracts by what the lock file says of each; `mode` and `strict` stand above it.

    With several `workers` the work is shared by as many processes when there is enough of it: comparing is all CPU.
    """
    judged = partial(_judge_one, mode=mode, strict=strict)
    if workers < 2 or sum(len(one.versions) ** 2 for one in contracts) < WORTH_SHARING:
        return [judged(one) for one in contracts]
    # A fork is there at once; it is safe as long as no other thread may hold a lock.
    can_fork = sys.platform == "linux" and threading.active_count() == 1
    context = multiprocessing.get_context("fork" if can_fork else "spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        return list(pool.map(judged, contracts, chunksize=max(1, len(contracts) // (workers * 8))))


def _judge_one(contract: Contract, *, mode: str | None, strict: bool) -> list[Finding]:
    return judge(contract, mode=mode or contract.entry.mode, strict=strict or contract.entry.strict)


def finding_of(change: Change, file: str) -> Finding:
    """A change of the engine as a finding of the newer version's file."""
    rule, who = _WHO[change.breaks]
    note = f" ({change.note})" if change.note else ""
    message = f"{_words(change)}: {who}{note}"
    return Finding(rule, _SEVERITIES[change.severity], file, message, change.mend, _path(change.path))


def _prepared(schema: Schema) -> Schema:
    """Read once for all its comparisons; what cannot be read is left to the comparison, which says why."""
    try:
        return prepare(schema)
    except CannotTell:
        return schema


def _judge_version(
    judged: tuple[Version, Schema], older: Sequence[tuple[Version, Schema]], *, mode: str, strict: bool
) -> Iterator[Finding]:
    version, after = judged
    told: dict[Finding, list[str]] = {}
    for one, before in older:
        for change in compare(before, after, mode=mode, strict=strict).changes:
            if change.severity != "info":
                told.setdefault(finding_of(change, version.file), []).append(show_version(one.number))
    accepted = version.release.accepted if version.release else ""
    for finding, numbers in told.items():
        named = replace(finding, message=f"{finding.message} [against {', '.join(numbers)}]")
        if accepted and finding.severity is Severity.ERROR:
            named = replace(named, severity=Severity.WARNING, message=f"{named.message} [accepted: {accepted}]")
        yield named


def _words(change: Change) -> str:
    """`maximum changed, from 5 to 3`."""
    kind = change.kind.replace("_", " ")
    if change.before is None and change.after is None:
        return kind
    if change.before is None:
        return f"{kind}: {_shown(change.after)}"
    if change.after is None:
        return f"{kind}: {_shown(change.before)}"
    return f"{kind}, from {_shown(change.before)} to {_shown(change.after)}"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[: MAX_VALUE_CHARS - 1]}…"


def _path(json_path: str) -> str:
    """`$.theme.candidates[*].score` as fields are named elsewhere: `theme.candidates[].score`."""
    return json_path.removeprefix("$").removeprefix(".").replace("[*]", "[]")
