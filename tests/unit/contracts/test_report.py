"""SCH-2: verdicts as text, JSON, JUnit and GitHub annotations; hostile names do not break out of a format."""

from __future__ import annotations

import json
from xml.etree import ElementTree

from bus.contracts.compare import Verdict, compare
from bus.contracts.report import as_json, github, junit, text

OLD = {"type": "object", "properties": {"size": {"type": "integer"}}}
NEW = {"type": "object", "properties": {"size": {"type": "string"}, "note": {"type": "string"}}}


def broken() -> Verdict:
    return compare(OLD, NEW).named("draft_request 2.0 -> 2.1", file="schemas/draft_request/2.1.json")


def hostile() -> Verdict:
    name = 'a]]>&<"\x00\x1b[31m\n::error::50%,x:y'
    old = {"type": "object", "properties": {name: {"type": "integer"}}}
    new = {"type": "object", "properties": {name: {"type": "string"}}}
    return compare(old, new).named("x\n::error::<&", file="a,b:c%.json")


def test_text_says_where_what_who_and_how_to_mend() -> None:
    assert text([broken()]) == (
        "draft_request 2.0 -> 2.1: BREAKING (full)\n"
        "  error: $.size type changed\n"
        '    "integer" -> "string"\n'
        "    both break: new readers on old messages, old readers on new messages\n"
        "    mend: add a new field beside it and leave this one as it was, or bump the major and write an upcaster\n"
        "  1 harmless change not shown\n"
    )
    assert "info: $.note property added" in text([broken()], verbose=True)
    assert text([broken(), compare(OLD, OLD)]).endswith("schema: compatible (full)\n2 compared, 1 breaking\n")
    assert text([]) == "0 compared, 0 breaking\n"


def test_text_stays_on_its_lines() -> None:
    shown = text([hostile()])
    assert "\x1b" not in shown
    assert "\x00" not in shown
    assert not any(line.startswith("::") for line in shown.splitlines())


def test_json_is_complete() -> None:
    found = json.loads(json.dumps(as_json([broken(), compare(OLD, OLD)])))
    assert found["compatible"] is False
    assert [one["compatible"] for one in found["verdicts"]] == [False, True]
    first = found["verdicts"][0]
    assert (first["subject"], first["file"], first["mode"]) == (
        "draft_request 2.0 -> 2.1",
        "schemas/draft_request/2.1.json",
        "full",
    )
    assert {"path", "kind", "before", "after", "breaks", "severity", "mend", "note"} == first["changes"][0].keys()
    assert as_json([]) == {"compatible": True, "verdicts": []}


def test_junit_can_be_parsed_and_counts() -> None:
    root = ElementTree.fromstring(junit([broken(), hostile(), compare(OLD, OLD)]))
    assert (root.get("tests"), root.get("failures")) == ("3", "2")
    first, second, third = root.iter("testcase")
    failure = first.find("failure")
    assert failure is not None
    assert "$.size type changed" in (failure.text or "")
    assert second.find("failure") is not None
    assert third.find("failure") is None


def test_github_escapes_what_has_a_meaning() -> None:
    first, second = github([broken(), hostile()]).splitlines()
    assert first.startswith(
        "::error file=schemas/draft_request/2.1.json,title=draft_request 2.0 -> 2.1 $.size type_changed::"
    )
    assert "%0A" in first
    assert second.startswith("::error file=a%2Cb%3Ac%25.json,title=x%0A%3A%3Aerror%3A%3A<& ")
    assert "50%25%2Cx%3Ay" in second
    assert github([compare(OLD, OLD)]) == ""
