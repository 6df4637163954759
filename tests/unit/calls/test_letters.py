"""The two envelopes of a call, and the shape of a result (TOOL-1, TOOL-2, TOOL-6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus import Envelope, Rejected, Result, ToolError
from bus.calls.asked import REQUEST_TYPE, Asked
from bus.calls.cut import shortened
from bus.calls.letters import letter
from bus.envelope import timestamps
from bus.errors import error

ids = st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=128)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=10,
)


@given(ids, ids, json_values)
def test_what_is_written_unchecked_is_a_valid_envelope(workflow: Any, session: Any, arguments: Any) -> None:
    fields, data = letter(
        sender="a", to="b", type=REQUEST_TYPE, trace_id="t", workflow_id=workflow, session_id=session, role="tool",
        status="success", extensions={"budget": {"deadline_at": timestamps.now(1.5)}},
        payload=Asked("c1", "a.b", arguments, "1.2", 2, 100).to_payload(),
    )  # fmt: skip
    read = Envelope.decode(data)
    assert read == Envelope.from_fields(fields)
    assert Asked.of(read) == Asked("c1", "a.b", arguments, "1.2", 2, 100)


def test_the_examples_of_the_specification_are_read() -> None:
    vectors = Path(__file__).parents[3] / "schemas" / "vectors"
    requests = [one for path in vectors.rglob("*.json") for one in [path.read_text("utf-8")] if REQUEST_TYPE in one]
    assert requests


def test_results_that_other_teams_write_are_read() -> None:
    assert Result.from_payload({"tool_call_id": "c", "status": "success", "output": {"a": 1}}).data == {"a": 1}
    failed = Result.from_payload({"status": "error", "error": {"code": "timeout", "message": "late"}})
    assert failed.error is not None
    assert failed.error.code == "tool.timeout"
    with pytest.raises(ToolError, match="late"):
        failed.unwrap()


@pytest.mark.parametrize(
    "payload",
    [None, {}, {"ok": True, "error": {"code": "timeout", "message": ""}}, {"ok": False}, {"ok": False, "error": 1}],
)
def test_data_and_error_exclude_each_other(payload: Any) -> None:
    with pytest.raises(Rejected):
        Result.from_payload(payload)
    with pytest.raises(ValueError, match="never both"):
        Result(True, 1, error("tool.timeout", "late").info)


@given(json_values, st.integers(4, 500))
def test_a_cut_result_fits(value: Any, limit: int) -> None:
    assert len(orjson.dumps(shortened(value, limit))) <= limit


def test_a_cut_keeps_the_shape() -> None:
    cut = shortened({"title": "T", "body": "x" * 10_000, "rows": list(range(1000))}, 1000)
    assert cut["title"] == "T"
    assert cut["body"].endswith("[cut]")
    assert 0 < len(cut["rows"]) < 1000
