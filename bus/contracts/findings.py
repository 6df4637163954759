"""Findings: what a check or a lint has to say, and the four ways to print it."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from xml.sax.saxutils import escape, quoteattr

MAX_SHOWN_CHARS = 2000


class Severity(StrEnum):
    """How much a finding weighs. Only an error makes a check fail (a warning too, where strictness is asked for)."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"


class Format(StrEnum):
    """How findings are printed."""

    TEXT = "text"
    JSON = "json"
    JUNIT = "junit"
    GITHUB = "github"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or worth a look.

    `rule` is a stable id in kebab case, `file` the file as the reader of the report would open it, `path` the field
    inside the contract (`theme.candidates[].text`, empty for the whole), `message` what is wrong, `mend` what to do.
    """

    rule: str
    severity: Severity
    file: str
    message: str
    mend: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What was looked at (`checked`, one name each) and what was found, in the order of the files."""

    title: str
    checked: tuple[str, ...]
    findings: tuple[Finding, ...]

    def failed(self, *, strict: bool = False) -> bool:
        """Whether there is an error; with `strict` a warning counts too."""
        bad = {Severity.ERROR, Severity.WARNING} if strict else {Severity.ERROR}
        return any(finding.severity in bad for finding in self.findings)

    def render(self, format: Format, *, strict: bool = False) -> str:
        """The report as text of one format, without a line end at its end."""
        if format is Format.JSON:
            return self._json(strict=strict)
        if format is Format.JUNIT:
            return self._junit(strict=strict)
        if format is Format.GITHUB:
            return self._github()
        return self._text()

    def _text(self) -> str:
        lines = []
        for finding in self.findings:
            where = f"{finding.file}: {finding.path}" if finding.path else finding.file
            lines.append(printable(f"{finding.severity:<7}  {where}: {finding.message} [{finding.rule}]"))
            if finding.mend:
                lines.append(printable(f"         mend: {finding.mend}"))
        return "\n".join([*lines, self.summary])

    @property
    def summary(self) -> str:
        """One line: how many were looked at, how many findings of each severity."""
        counts = [
            f"{n} {severity}{'' if n == 1 else 's'}"
            for severity in Severity
            if (n := sum(finding.severity is severity for finding in self.findings))
        ]
        looked = f"{len(self.checked)} contract{'' if len(self.checked) == 1 else 's'}"
        return f"{self.title}: {looked}, {', '.join(counts) or 'nothing to say'}"

    def _json(self, *, strict: bool) -> str:
        found = {
            "ok": not self.failed(strict=strict),
            "title": self.title,
            "checked": list(self.checked),
            "findings": [
                {
                    "rule": finding.rule,
                    "severity": finding.severity.value,
                    "file": finding.file,
                    "path": finding.path,
                    "message": finding.message,
                    "mend": finding.mend,
                }
                for finding in self.findings
            ],
        }
        return json.dumps(found, indent=2)

    def _junit(self, *, strict: bool) -> str:
        """One test case a contract, one more for each file that is none; notices go to its output."""
        fails = {Severity.ERROR, Severity.WARNING} if strict else {Severity.ERROR}
        by_file: dict[str, list[Finding]] = {name: [] for name in self.checked}
        for finding in self.findings:
            by_file.setdefault(_owner(finding.file, self.checked), []).append(finding)
        failures = sum(any(one.severity in fails for one in found) for found in by_file.values())
        lines = ['<?xml version="1.0" encoding="UTF-8"?>']
        lines.append(f'<testsuites><testsuite name={_attribute(self.title)} tests="{len(by_file)}"')
        lines[-1] += f' failures="{failures}" errors="0" skipped="0">'
        for name, found in by_file.items():
            lines.append(f"<testcase classname={_attribute(self.title)} name={_attribute(name)}>")
            bad = [one for one in found if one.severity in fails]
            rest = [one for one in found if one.severity not in fails]
            if bad:
                text = "\n".join(_told(one) for one in bad)
                lines.append(f"<failure message={_attribute(bad[0].message)}>{_text(text)}</failure>")
            if rest:
                lines.append(f"<system-out>{_text(chr(10).join(_told(one) for one in rest))}</system-out>")
            lines.append("</testcase>")
        lines.append("</testsuite></testsuites>")
        return "\n".join(lines)

    def _github(self) -> str:
        """Workflow commands, which GitHub shows beside the lines of a change; then the summary."""
        lines = []
        for finding in self.findings:
            said = f"{finding.path}: {finding.message}" if finding.path else finding.message
            message = f"{said}. Mend: {finding.mend}" if finding.mend else said
            properties = f"file={_property(finding.file)},line=1,title={_property(finding.rule)}"
            lines.append(f"::{finding.severity} {properties}::{_data(message)}")
        return "\n".join([*lines, printable(self.summary)])


def printable(text: str) -> str:
    """Text of unknown origin as one line, without control characters, which a terminal would obey, and not endless."""
    short = text if len(text) <= MAX_SHOWN_CHARS else f"{text[: MAX_SHOWN_CHARS - 1]}…"
    return "".join(char if unicodedata.category(char)[0] != "C" else "�" for char in short)


def _owner(file: str, checked: Sequence[str]) -> str:
    """The contract that a file belongs to (its folder's name), else the file itself."""
    parts = file.replace("\\", "/").split("/")
    return parts[-2] if len(parts) > 1 and parts[-2] in checked else file


def _told(finding: Finding) -> str:
    where = f"{finding.file}: {finding.path}" if finding.path else finding.file
    mend = f"\n  mend: {finding.mend}" if finding.mend else ""
    return f"{finding.severity} {where}: {finding.message} [{finding.rule}]{mend}"


def _attribute(text: str) -> str:
    return quoteattr(printable(text))


def _text(text: str) -> str:
    return "\n".join(escape(printable(line)) for line in text.split("\n"))


def _data(text: str) -> str:
    return printable(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
