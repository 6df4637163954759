"""SCH-2: what is printed is whole, escaped, and the same in every format."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from bus.contracts.findings import Finding, Format, Report, Severity

HOSTILE = "a%0Ab\n::error::x\x1b[31m<b>&\"']]>\u202e\x00"
FINDINGS = (
    Finding("some-rule", Severity.ERROR, "schemas/note/1.0.json", "it is wrong", "mend it", "text"),
    Finding("other-rule", Severity.WARNING, "schemas/note/1.1.json", "look"),
    Finding("third-rule", Severity.NOTICE, "schemas/lock.json", HOSTILE, HOSTILE, HOSTILE),
)
REPORT = Report("schema check", ("note", "order"), FINDINGS)


def test_text_is_one_line_a_finding_and_one_for_its_mend() -> None:
    lines = REPORT.render(Format.TEXT).splitlines()
    assert lines[:3] == [
        "error    schemas/note/1.0.json: text: it is wrong [some-rule]",
        "         mend: mend it",
        "warning  schemas/note/1.1.json: look [other-rule]",
    ]
    assert lines[-1] == "schema check: 2 contracts, 1 error, 1 warning, 1 notice"
    assert len(lines) == 6


def test_json_has_everything() -> None:
    told = json.loads(REPORT.render(Format.JSON))
    assert (told["ok"], told["checked"], len(told["findings"])) == (False, ["note", "order"], 3)
    assert told["findings"][2]["message"] == HOSTILE


def test_junit_is_xml_with_a_case_for_each_contract() -> None:
    suite = ElementTree.fromstring(REPORT.render(Format.JUNIT))[0]
    assert suite.attrib["tests"] == "3"
    assert suite.attrib["failures"] == "1"
    cases = {case.attrib["name"]: case for case in suite}
    assert list(cases) == ["note", "order", "schemas/lock.json"]
    assert "mend it" in (cases["note"].findtext("failure") or "")
    assert "other-rule" in (cases["note"].findtext("system-out") or "")
    assert len(cases["order"]) == 0


def test_github_commands_cannot_be_smuggled_in() -> None:
    lines = REPORT.render(Format.GITHUB).splitlines()
    assert lines[0] == "::error file=schemas/note/1.0.json,line=1,title=some-rule::text: it is wrong. Mend: mend it"
    assert len(lines) == 4
    assert "%250Ab" in lines[2]


@pytest.mark.parametrize("format", [Format.TEXT, Format.GITHUB, Format.JUNIT])
def test_control_characters_never_reach_a_terminal(format: Format) -> None:
    assert not {"\x1b", "\x00", "\u202e"} & set(REPORT.render(format))


def test_strictness_counts_warnings() -> None:
    report = Report("lint", ("note",), FINDINGS[1:])
    assert (report.failed(), report.failed(strict=True)) == (False, True)
    assert 'failures="1"' in report.render(Format.JUNIT, strict=True)


def test_nothing_to_say() -> None:
    assert Report("schema lint", ("note",), ()).render(Format.TEXT) == "schema lint: 1 contract, nothing to say"
