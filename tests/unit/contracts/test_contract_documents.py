"""SCH-5: the documents of a catalogue say everything, and other people's words stay words."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from bus.contracts.asyncapi import asyncapi
from bus.contracts.catalogue import Catalogue, CatalogueError
from bus.contracts.docs import write_docs
from bus.contracts.sheet import changes, sheet_of
from bus.contracts.well_formed import check_schema
from tests.unit.contracts.conftest import Written, note

ROOT = Path(__file__).parents[3]
HOSTILE = "</td><script>alert(1)</script>|`x\n# [a](javascript:b) {{7*7}}"


@pytest.fixture
def ours() -> Catalogue:
    return Catalogue.read(ROOT / "schemas")


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [one for inner in value.values() for one in references(inner)]
    return [one for inner in value for one in references(inner)] if isinstance(value, list) else []


def found_at(document: Any, reference: str) -> Any:
    node = document
    for part in reference.removeprefix("#/").split("/"):
        node = node[part]
    return node


def test_every_contract_is_in_every_document(ours: Catalogue, tmp_path: Path) -> None:
    paths = write_docs(ours, tmp_path / "out", title="Briefs")
    assert [path.name for path in paths] == ["asyncapi.json", "contracts.md", "contracts.html"]
    for path in paths:
        text = path.read_text("utf-8")
        for type in ours.contracts:
            assert type in text, (path, type)
        assert "is_exhausted" in text
    again = write_docs(ours, tmp_path / "again", title="Briefs")
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]


def test_references_of_the_asyncapi_document_lead_somewhere(ours: Catalogue) -> None:
    document = json.loads(json.dumps(asyncapi(ours, title="Briefs")))
    targets = references(document)
    assert len(targets) > 40
    for target in targets:
        assert found_at(document, target) is not None


def test_senders_and_receivers_are_operations_on_their_subjects(ours: Catalogue) -> None:
    document = asyncapi(ours, title="Briefs")
    channel = document["channels"]["reviewer.review_request"]
    assert channel["address"] == "bus.v1.work.reviewer.{lane}.{sender}.review_request"
    assert set(channel["messages"]) == {"review_request_v1", "review_request_v2"}
    assert document["channels"]["events.brief_ready"]["address"].startswith("bus.v1.event.{sender}.{workflow}.")
    sends, receives = (
        document["operations"][name]
        for name in ("writer.sends.reviewer.review_request", "reviewer.receives.reviewer.review_request")
    )
    assert (sends["action"], receives["action"]) == ("send", "receive")


def test_words_of_2020_12_become_those_of_draft_07(written: Written) -> None:
    schema = note(
        pair={"type": "array", "prefixItems": [{"type": "string"}], "items": False, "description": "x"},
        other={"$ref": "#/$defs/Other", "description": "beside a reference"},
        again={"$ref": "#"},
    )
    schema |= {"dependentRequired": {"pair": ["text"]}, "$defs": {"Other": {"const": {"$ref": "data"}}}}
    schemas = asyncapi(written({"note/1.0.json": schema}), title="x")["components"]["schemas"]
    made = schemas["note_v1"]
    assert made["properties"]["pair"]["items"] == [{"type": "string"}]
    assert made["properties"]["pair"]["additionalItems"] is False
    assert made["properties"]["other"]["allOf"] == [{"$ref": "#/components/schemas/note_v1_Other"}]
    assert made["properties"]["again"] == {"$ref": "#/components/schemas/note_v1"}
    assert made["dependencies"] == {"pair": ["text"]}
    assert schemas["note_v1_Other"] == {"const": {"$ref": "data"}}
    assert not {"$schema", "$defs"} & made.keys()
    draft_07 = "http://json-schema.org/draft-07/schema#"
    check_schema({"$schema": draft_07, "components": {"schemas": schemas}, "allOf": [made]})


def test_the_history_tells_what_changed(ours: Catalogue) -> None:
    sheet = sheet_of(ours.contracts["brief_ready"])
    assert [past.version for past in sheet.history] == ["1.2", "1.1", "1.0"]
    assert sheet.history[0].changes == (
        "added `sections_with_remarks` (optional integer, at least 0, at most 12, default 0)",
    )
    assert [form.version for form in sheet_of(ours.contracts["review_request"]).forms] == ["2.0", "1.0"]


def test_changes_in_words(written: Written) -> None:
    old = note(size={"type": "integer", "minimum": 1}, gone={"type": "string"})
    new = note(size={"type": ["integer", "null"], "maximum": 9}) | {"required": ["text", "size"]}
    first, second = written({"note/1.0.json": old, "note/1.1.json": new}).contracts["note"].versions
    assert list(changes(first, second)) == [
        "removed `gone`",
        "`size` was integer, at least 1, is integer or null, at most 9",
        "`size` is required now",
    ]


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not any(name.startswith("on") or (value or "").startswith("http") for name, value in attrs)


def test_hostile_words_stay_words(written: Written, tmp_path: Path) -> None:
    schema = note(**{HOSTILE: {"enum": [HOSTILE], "description": HOSTILE}})
    schema |= {"description": HOSTILE, "title": HOSTILE, "examples": [{"text": HOSTILE + "\n```\n"}]}
    catalogue = written({"note/1.0.json": schema}, released=["note/1.0.json"], owner=HOSTILE)
    _, markdown, page = (path.read_text("utf-8") for path in write_docs(catalogue, tmp_path / "out", title=HOSTILE))
    tags = _Tags()
    tags.feed(page)
    assert not {"script", "a href=", "img", "iframe"} & tags.tags
    outside = "".join(markdown.split("```")[0::2])
    assert "<script" not in outside
    assert re.search(r"(?<!\\)\]\(javascript", outside) is None
    assert markdown.count("\n```\n") == 1


def test_a_contract_that_is_true(written: Written, tmp_path: Path) -> None:
    assert write_docs(written({"note/1.0.json": True}), tmp_path / "out", title="x")


def test_a_place_that_cannot_be_written(ours: Catalogue, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CatalogueError, match="--out names a folder"):
        write_docs(ours, tmp_path / "file", title="x")
