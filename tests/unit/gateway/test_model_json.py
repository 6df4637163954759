"""The tolerant reader of model output (ENV-8, SEC-7)."""

from __future__ import annotations

import builtins
import json
import string
import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.errors import ErrorInfo, ToolError
from bus.gateway.model_json import MAX_RAW_CHARS, read_model_json

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(), below, max_size=4), max_leaves=12
)
containers = values.filter(lambda value: isinstance(value, dict | list))
# Words of a person: no brackets and no quotes, which could be JSON of their own.
prose = st.text(string.ascii_letters + " .,;:!?\n", max_size=60)


@given(values, st.sampled_from([None, 2]), st.booleans())
def test_strict_json_is_never_altered(value: Any, indent: int | None, ascii_only: bool) -> None:
    """ENV-8: strict parse first."""
    read = read_model_json(json.dumps(value, indent=indent, ensure_ascii=ascii_only))
    assert (read.value, read.repairs, read.is_truncated) == (value, (), False)
    assert json.dumps(read.value) == json.dumps(value)


@given(containers, prose, prose, st.sampled_from([None, 2]))
def test_any_object_or_array_survives_in_prose(value: Any, before: str, after: str, indent: int | None) -> None:
    """ENV-8: prose around the JSON."""
    read = read_model_json(f"{before}\n{json.dumps(value, indent=indent)}\n{after}")
    assert json.dumps(read.value) == json.dumps(value)
    assert read.is_truncated is False


@given(values, prose, st.sampled_from(["json", "", "JSON"]))
def test_any_json_survives_in_code_fences(value: Any, before: str, language: str) -> None:
    """ENV-8: code fences."""
    read = read_model_json(f"{before}\n```{language}\n{json.dumps(value)}\n```\nIs that all right?")
    assert json.dumps(read.value) == json.dumps(value)
    assert read.repairs == ("code fences were removed",)


@given(containers, st.data())
def test_a_truncated_tail_is_marked_and_nothing_is_made_up(value: Any, data: st.DataObject) -> None:
    """ENV-8: a truncated tail; what is read is a part of what was written."""
    text = json.dumps(value)
    cut = text[: data.draw(st.integers(1, len(text) - 1))]
    read = read_model_json(cut)
    assert read.is_truncated
    assert read.is_repaired
    assert is_part(read.value, value)


def is_part(found: Any, whole: Any) -> bool:
    """Whether nothing is in `found` that is not in `whole`, at the same place."""
    if isinstance(found, dict):
        return isinstance(whole, dict) and all(name in whole and is_part(found[name], whole[name]) for name in found)
    if isinstance(found, list):
        return isinstance(whole, list) and len(found) <= len(whole) and all(map(is_part, found, whole))
    if isinstance(found, str):
        return isinstance(whole, str) and whole.startswith(found)
    return bool(found == whole and type(found) is type(whole))


def outcome(text: str) -> Any:
    """What is read, or the error."""
    try:
        return read_model_json(text).value
    except ToolError as refused:
        return refused.info


@given(st.text() | st.text("{}[]\",:'\\`\n 1aetrufalsn", max_size=200))
def test_garbage_raises_nothing_but_our_error(text: str) -> None:
    """ENV-8: a structured failure that keeps the raw output."""
    found = outcome(text)
    if not isinstance(found, ErrorInfo):
        json.dumps(found, allow_nan=False)
        return
    assert found.code == "model.invalid_output"
    assert found.details["problem"]
    assert len(found.details["raw"]) <= MAX_RAW_CHARS


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a': 1, 'b': True, 'c': None}", {"a": 1, "b": True, "c": None}),
        ('{a: 1, b: "x"}', {"a": 1, "b": "x"}),
        ('{"a": [1, 2,],}', {"a": [1, 2]}),
        ('{"a": "x" "b": 2}', {"a": "x", "b": 2}),
        ('{"a": 1, // why\n "b": 2}', {"a": 1, "b": 2}),
        ("{“a”: “b”}", {"a": "b"}),
        ('{"say": "he said "hi" to me"}', {"say": 'he said "hi" to me'}),
        ('The [docs](x.md) say {"a": [1]}.', {"a": [1]}),
        ('Example: {"a": 1}. Now: {"a": 2, "b": [3]}', {"a": 2, "b": [3]}),
    ],
)
def test_common_slips_are_mended_and_told(text: str, value: Any) -> None:
    """ENV-8: the few common repairs."""
    read = read_model_json(text)
    assert read.value == value
    assert read.repairs
    assert not read.is_truncated


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1, "b": 12', {"a": 1}),
        ('{"a": 1, "b": tru', {"a": 1}),
        ('{"a": 1, "b', {"a": 1}),
        ('{"a": 1, "b": "half a sen', {"a": 1, "b": "half a sen"}),
        ('```json\n{"a": [1, {"b": "c"}, {"d"', {"a": [1, {"b": "c"}, {}]}),
        ('{"a": "caf\\u00', {"a": "caf"}),
        ("{'a': 1, 'b': [True, 2", {"a": 1, "b": [True]}),
    ],
)
def test_of_a_truncated_tail_only_what_is_certain_is_kept(text: str, value: Any) -> None:
    """ENV-8: half a number is another number."""
    read = read_model_json(text)
    assert (read.value, read.is_truncated) == (value, True)


@pytest.mark.parametrize("text", ['{"a": }', '{"a" 1}', "", "  ", "no JSON at all", '{"a": 1e999}', "NaN", "["])
def test_what_would_need_an_invention_is_refused(text: str) -> None:
    """ENV-8: never invents data."""
    if text == "[":
        assert read_model_json(text).value == []
        return
    with pytest.raises(ToolError) as refused:
        read_model_json(text)
    assert refused.value.info.code == "model.invalid_output"
    assert refused.value.info.details["raw"] == text
    assert refused.value.info.advice == "regenerate"


SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def test_the_schema_chooses_among_several_values() -> None:
    """ENV-8."""
    assert read_model_json('I use {"tool": "a long name of a tool"}. {"n": 7}', SCHEMA).value == {"n": 7}


def test_what_does_not_fit_the_schema_says_every_path() -> None:
    """ENV-8, TOOL-3."""
    with pytest.raises(ToolError, match=r"output\.n") as refused:
        read_model_json('```\n{"n": "7"}\n```', SCHEMA)
    assert refused.value.info.details["schema"] == SCHEMA
    assert [one["path"] for one in refused.value.info.details["errors"]] == ["output.n"]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000, '{"a":' * 40_000, '{"a": "' * 30_000, "['" * 50_000, "{a:" * 50_000, "[1 " * 60_000,
        "```json\n" * 20_000, "`" * 200_000, '{"a": x, ' * 20_000, '"' * 200_000, '{"a": "' + 'b" ' * 50_000 + "}",
        "x" * 2_000_000,
    ],
    ids=lambda text: text[:8],
)  # fmt: skip
def test_no_text_takes_long(text: str) -> None:
    """SEC-7: limits for size and depth."""
    started = time.process_time()
    found = outcome(text)
    assert not isinstance(found, ErrorInfo) or len(found.details["raw"]) <= MAX_RAW_CHARS
    assert time.process_time() - started < 5


def test_depth_is_limited_also_for_strict_json() -> None:
    """SEC-7."""
    assert read_model_json("[" * 64 + "]" * 64).value
    for depth in (65, 5000):
        with pytest.raises(ToolError, match="deeper than 64"):
            read_model_json("[" * depth + "]" * depth)


def test_without_the_extra_strict_json_is_read_and_a_repair_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """ENV-8: json-repair is an extra."""
    imported = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name == "json_repair":
            raise ImportError(name)
        return imported(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    assert read_model_json('fine: {"a": 1}').value == {"a": 1}
    with pytest.raises(ImportError, match=r"envelope-bus\[models\]"):
        read_model_json("{a: 1}")
