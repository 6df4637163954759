"""TOOL-7: every rule of the linter, broken and kept, and switched off with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bus.contracts.catalogue import Contract
from bus.contracts.findings import Finding
from bus.contracts.lint import RULES, lint
from tests.unit.contracts.conftest import Written, note

TEXT = {"type": "string", "description": "A text."}
FLAG = {"type": "boolean", "description": "A flag."}
TIME = {"type": "string", "format": "date-time", "description": "A time."}
NUMBER = {"type": "integer", "description": "A number."}


@pytest.fixture
def linted(written: Written) -> Any:
    """The findings of one contract, as (rule, path)."""

    def run(schema: Any) -> list[tuple[str, str]]:
        return [(one.rule, one.path) for one in lint(contract_of(written, {"note/1.0.json": schema}))]

    return run


def contract_of(written: Written, files: dict[str, Any], **options: Any) -> Contract:
    catalogue = written(files, **options)
    assert catalogue.problems == ()
    return catalogue.contracts["note"]


def test_a_good_contract(linted: Any) -> None:
    assert linted(note(is_read=FLAG, has_author=FLAG, read_at=TIME, total_amount=NUMBER, total_currency=TEXT)) == []


@pytest.mark.parametrize(
    ("field", "schema", "rule"),
    [
        ("camelCase", TEXT, "snake-case"),
        ("Text", TEXT, "snake-case"),
        ("two__lines", TEXT, "snake-case"),
        ("1st", TEXT, "snake-case"),
        ("a b\x1b", TEXT, "snake-case"),
        ("read", FLAG, "boolean-prefix"),
        ("is_read", TEXT, "boolean-prefix"),
        ("has_author", {"type": ["integer", "null"], "description": "x"}, "boolean-prefix"),
        ("read_at", TEXT, "time-suffix"),
        ("read_at", NUMBER, "time-suffix"),
        ("moment", TIME, "time-name"),
        ("total_amount", NUMBER, "amount-currency"),
        ("amount", NUMBER, "amount-currency"),
        ("other", {"type": "string"}, "description-missing"),
        ("other", {"type": "string", "description": "  "}, "description-missing"),
        ("kind", {"enum": ["a", "b"], "description": "x"}, "enum-unmarked"),
        ("kinds", {"type": "array", "items": {"enum": ["a", "b"]}, "description": "x"}, "enum-unmarked"),
    ],
)
def test_a_rule_that_is_broken(linted: Any, field: str, schema: Any, rule: str) -> None:
    assert (rule, field) in linted(note(**{field: schema}))


@pytest.mark.parametrize(
    "properties",
    [
        {"read": {"type": ["boolean", "string"], "description": "x"}},
        {"is_read": {"type": ["boolean", "null"], "description": "x"}},
        {"read_at": {"anyOf": [TIME, {"type": "null"}], "description": "x"}},
        {"amount": NUMBER, "currency": TEXT},
        {"net_amount": NUMBER, "tax_amount": NUMBER, "currency": TEXT},
        {"kind": {"enum": ["a", "b"], "x-open-enum": False, "description": "x"}},
        {"kind": {"enum": ["a", "b"], "x-open-enum": True, "description": "x"}},
        {"kind": {"enum": ["a"], "description": "x"}},
        {"kind": {"const": "a", "description": "x"}},
    ],
)
def test_a_rule_that_is_kept(linted: Any, properties: Any) -> None:
    assert linted(note(**properties)) == []


def test_too_many_fields_are_told_where_they_are(linted: Any) -> None:
    many = {f"field_{letter}": TEXT for letter in "abcdefghi"}
    inner = {"type": "object", "description": "x", "properties": many}
    assert linted(note(**many)) == [("too-many-fields", "")]
    assert linted(note(inner=inner)) == [("too-many-fields", "inner")]


def test_depth_counts_through_arrays_and_references(linted: Any) -> None:
    leaf = {"type": "object", "description": "x", "properties": {"leaf": TEXT}}
    middle = {"type": "object", "description": "x", "properties": {"middle": {"$ref": "#/$defs/Leaf"}}}
    schema = note(outer={"type": "array", "items": middle, "description": "x"}) | {"$defs": {"Leaf": leaf}}
    assert linted(schema) == [("too-deep", "outer[].middle.leaf")]


def test_a_contract_that_contains_itself_ends(linted: Any) -> None:
    schema = note(answers={"type": "array", "items": {"$ref": "#"}, "description": "x"})
    assert linted(schema) == []


def test_a_contract_that_explodes_ends(linted: Any) -> None:
    def below(name: str) -> dict[str, Any]:
        return {
            "type": "object",
            "description": "x",
            "properties": {f"f_{letter}": {"$ref": f"#/$defs/{name}"} for letter in "abcdefgh"},
        }

    levels = {f"L{level}": below(f"L{level + 1}") for level in range(20)}
    schema = note(start={"$ref": "#/$defs/L0"}) | {"$defs": levels | {"L20": TEXT}}
    assert ("too-large", "") in linted(schema)


def test_the_whole_needs_a_description_and_an_example(linted: Any) -> None:
    bare = {name: value for name, value in note().items() if name not in ("description", "examples")}
    assert linted(bare) == [("description-missing", ""), ("example-missing", "")]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"examples": [{"text": 7}]}, ""),
        ({"examples": [{"text": "x"}, {}]}, ""),
        ({"properties": {"text": {**TEXT, "examples": [7]}}}, "/properties/text"),
        ({"properties": {"text": {**NUMBER, "default": None}}, "examples": [{"text": 1}]}, "/properties/text"),
        ({"properties": {"text": TIME}, "examples": [{"text": "yesterday"}]}, ""),
        (
            {"properties": {"text": {"$ref": "#/$defs/T", "default": 7}}, "$defs": {"T": TEXT}},
            "/properties/text",
        ),
    ],
)
def test_examples_and_defaults_are_validated(linted: Any, change: Any, path: str) -> None:
    assert ("example-invalid", path) in linted(note() | change)


def test_renames_are_suspected_within_a_major(written: Written) -> None:
    def contract(version: str) -> Contract:
        files = {"note/1.0.json": note(authr=TEXT), f"note/{version}.json": note(author=TEXT)}
        return contract_of(written, files, released=["note/1.0.json"])

    (finding,) = lint(contract("1.1"))
    assert (finding.rule, finding.path) == ("rename-suspected", "author")
    assert "authr of 1.0 seems to be called author now" in finding.message


def test_a_rename_with_a_new_major_is_the_upcasters(written: Written) -> None:
    files = {"note/1.0.json": note(authr=TEXT), "note/2.0.json": note(author=TEXT)}
    assert lint(contract_of(written, files)) == []


def test_fields_that_are_only_both_texts_are_no_rename(written: Written) -> None:
    files = {
        "note/1.0.json": note(colour={"type": "string", "description": "One."}),
        "note/1.1.json": note(weight={"type": "string", "description": "Other."}),
    }
    assert lint(contract_of(written, files, released=["note/1.0.json"])) == []


def test_released_versions_are_left_alone_but_the_newest(written: Written) -> None:
    files = {f"note/1.{minor}.json": note(badName=TEXT) for minor in range(3)}
    contract = contract_of(written, files, released=["note/1.0.json", "note/1.1.json"])

    def linted_files(found: list[Finding]) -> list[str]:
        return [one.file.rpartition("/")[2] for one in found]

    assert linted_files(lint(contract)) == ["1.2.json"]
    assert linted_files(lint(contract, every_version=True)) == ["1.0.json", "1.1.json", "1.2.json"]


class TestIgnore:
    """A rule is switched off with a reason, for the file or for one field."""

    def test_for_the_file(self, linted: Any) -> None:
        assert linted(note(badName=TEXT) | {"x-lint-ignore": {"snake-case": "older than the rule"}}) == []

    def test_for_one_field(self, linted: Any) -> None:
        ignoring = {**TEXT, "x-lint-ignore": {"snake-case": "as the bank has it"}}
        assert linted(note(badName=ignoring, otherName=TEXT)) == [("snake-case", "otherName")]

    @pytest.mark.parametrize(
        "said",
        [
            {"snake-case": ""},
            {"snake-case": "  "},
            {"snake-case": True},
            {"snake-cased": "why"},
            {"ignore-unused": "no"},
            ["snake-case"],
            "snake-case",
        ],
    )
    def test_without_a_reason_it_ignores_nothing(self, linted: Any, said: Any) -> None:
        found = linted(note(badName=TEXT) | {"x-lint-ignore": said})
        assert set(found) == {("ignore-invalid", ""), ("snake-case", "badName")}

    def test_one_that_is_not_needed_is_told(self, linted: Any) -> None:
        assert linted(note() | {"x-lint-ignore": {"too-deep": "was"}}) == [("ignore-unused", "")]


def test_every_rule_says_what_it_wants_and_is_tested() -> None:
    tested = Path(__file__).read_text("utf-8")
    assert all(rule.wants and rule.id in tested for rule in RULES.values())
