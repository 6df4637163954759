"""Each version of a contract against the ones before it: the engine's verdicts as findings (SCH-2)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from bus.contracts.catalogue import Contract, Version
from bus.contracts.compare import Change, compare
from bus.contracts.findings import Finding, Severity
from bus.contracts.lock import show_version

MAX_VALUE_CHARS: Final = 80
_TRANSITIVE: Final = "_transitive"


def judge(contract: Contract, *, mode: str, strict: bool) -> Iterator[Finding]:
    """What breaks whom inside each major, nearest version first; one finding a change, however many versions it breaks.

    `mode` is one of the lock file's. What was accepted at its release is a warning.
    """
    direction = mode.removesuffix(_TRANSITIVE)
    for major in contract.majors:
        versions = contract.of_major(major)
        for position, version in enumerate(versions):
            older = list(reversed(versions[:position]))
            told: dict[Finding, list[Version]] = {}
            for before in older if mode.endswith(_TRANSITIVE) else older[:1]:
                verdict = compare(before.schema, version.schema, mode=direction, strict=strict)
                for change in verdict.changes:
                    finding = finding_of(change, version)
                    if finding.severity is not Severity.NOTICE:
                        told.setdefault(finding, []).append(before)
            for finding, broken in told.items():
                yield _named(finding, version, broken)


def finding_of(change: Change, version: Version) -> Finding:
    """A change of the engine as a finding of the newer version's file."""
    breaks = f"breaks {change.breaks}" if change.breaks else "worth a look"
    message = f"{change.kind}: {shown(change.before)} is now {shown(change.after)}; {breaks}"
    rule = "breaks-readers" if change.breaks else "changed"
    accepted = version.release is not None and bool(version.release.accepted)
    severity = Severity(change.severity)
    if accepted and severity is Severity.ERROR:
        severity = Severity.WARNING
    return Finding(rule, severity, version.file, message, change.mend, change.path)


def shown(value: Any) -> str:
    """A part of a schema in one short line; `nothing` for what is not there."""
    if value is None:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[: MAX_VALUE_CHARS - 1]}…"


def _named(finding: Finding, version: Version, broken: list[Version]) -> Finding:
    numbers = ", ".join(show_version(one.number) for one in reversed(broken))
    accepted = version.release.accepted if version.release else ""
    why = f" (accepted: {accepted})" if accepted else ""
    message = f"against {numbers}: {finding.message}{why}"
    return Finding(finding.rule, finding.severity, finding.file, message, finding.mend, finding.path)
