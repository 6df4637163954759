"""Verdicts for people and for machines: text, JSON, JUnit XML, and annotations for GitHub Actions (SCH-2)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final
from xml.etree import ElementTree

from .compare import Verdict
from .compatibility.explain import Change
from .compatibility.values import shown

_WHO: Final = {
    "none": "nobody breaks",
    "old_readers": "old readers break: they cannot read what new writers send",
    "new_readers": "new readers break: they cannot read what old writers send",
    "both": "both break: new readers on old messages, old readers on new messages",
}
_LEVELS: Final = {"error": "error", "warning": "warning", "info": "notice"}
_NOT_IN_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def text(verdicts: Iterable[Verdict], *, verbose: bool = False) -> str:
    """What a person reads: one paragraph a verdict, errors and warnings in full, harmless changes with `verbose`.

    Every line stands alone: control characters of a schema are shown escaped. Ends with a line end.
    """
    lines: list[str] = []
    verdicts = list(verdicts)
    for verdict in verdicts:
        answer = "compatible" if verdict.compatible else "BREAKING"
        lines.append(f"{_plain(verdict.subject) or 'schema'}: {answer} ({verdict.mode})")
        hidden = 0
        for change in verdict.changes:
            if change.severity == "info" and not verbose:
                hidden += 1
            else:
                lines += [f"  {line}" for line in _lines(change)]
        if hidden:
            lines.append(f"  {hidden} harmless {'change' if hidden == 1 else 'changes'} not shown")
    broken = sum(not verdict.compatible for verdict in verdicts)
    if len(verdicts) != 1:
        lines.append(f"{len(verdicts)} compared, {broken} breaking")
    return "\n".join(lines) + "\n"


def as_json(verdicts: Iterable[Verdict]) -> dict[str, Any]:
    """`{compatible, verdicts}` as a JSON object."""
    listed = [verdict.to_json() for verdict in verdicts]
    return {"compatible": all(one["compatible"] for one in listed), "verdicts": listed}


def junit(verdicts: Iterable[Verdict], *, name: str = "bus schema check") -> str:
    """JUnit XML: a test case a verdict, one failure with every error; warnings and the rest in `system-out`."""
    verdicts = list(verdicts)
    failures = sum(not verdict.compatible for verdict in verdicts)
    counts = {"tests": str(len(verdicts)), "failures": str(failures), "errors": "0"}
    root = ElementTree.Element("testsuites", {"name": _xml(name), **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": _xml(name), **counts})
    for verdict in verdicts:
        attributes = {"name": _xml(verdict.subject or "schema"), "classname": "schema." + verdict.mode}
        if verdict.file:
            attributes["file"] = _xml(verdict.file)
        case = ElementTree.SubElement(suite, "testcase", attributes)
        errors = [change for change in verdict.changes if change.severity == "error"]
        rest = [change for change in verdict.changes if change.severity != "error"]
        if not verdict.compatible:
            message = f"{len(errors)} breaking {'change' if len(errors) == 1 else 'changes'}"
            failure = ElementTree.SubElement(case, "failure", {"message": message, "type": "breaking"})
            failure.text = _xml(_body(errors))
        if rest:
            ElementTree.SubElement(case, "system-out").text = _xml(_body(rest))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def github(verdicts: Iterable[Verdict]) -> str:
    """Workflow commands of GitHub Actions, a line a change that is an error or a warning; empty when there is none."""
    lines = []
    for verdict in verdicts:
        for change in verdict.changes:
            if change.severity == "info":
                continue
            title = f"{verdict.subject or 'schema'} {change.path} {change.kind}"
            properties = [f"file={_property(verdict.file)}"] if verdict.file else []
            properties.append(f"title={_property(title)}")
            lines.append(f"::{_LEVELS[change.severity]} {','.join(properties)}::{_message(_body([change]))}\n")
    return "".join(lines)


def _lines(change: Change) -> Iterator[str]:
    yield f"{change.severity}: {_plain(change.path)} {change.kind.replace('_', ' ')}"
    if change.before is not None or change.after is not None:
        yield f"  {_plain(shown(change.before))} -> {_plain(shown(change.after))}"
    if change.note:
        yield f"  {_plain(change.note)}"
    if change.breaks != "none":
        yield f"  {_WHO[change.breaks]}"
    if change.mend:
        yield f"  mend: {_plain(change.mend)}"


def _body(changes: Iterable[Change]) -> str:
    return "\n".join(line for change in changes for line in _lines(change))


def _plain(value: str) -> str:
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", value)


def _xml(value: str) -> str:
    return _NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", value)


def _message(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _message(value).replace(":", "%3A").replace(",", "%2C")
