"""The record of a workflow and its transitions (WF-1, WF-3)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from bus.errors import ToolError
from bus.workflow.branches import document_key, id_in_branch
from bus.workflow.phases import Phase, Phases
from bus.workflow.record import CHANGES_KEPT, By, WorkflowRecord

START = datetime(2026, 1, 1, tzinfo=UTC)
PHASES = Phases(["plan", Phase("draft", limit=2), "review"])


def by(second: int, writer: str = "w") -> By:
    return By(writer, START + timedelta(seconds=second))


def begun() -> WorkflowRecord:
    return WorkflowRecord.begun("id", "name", by(0), phases=PHASES)


def test_a_transition_that_changes_nothing_is_the_same_record() -> None:
    """WF-3: so nothing is written, and a handler that runs again moves nothing twice."""
    record = begun().entered("plan", by(1))
    assert record.entered("plan", by(2)) is record
    left = record.left("plan", by(3))
    assert left.left("plan", by(4)) is left
    ended = left.ended("success", by(5))
    assert ended.ended("error", by(6), error="late") is ended
    assert left.resumed(by(7)) is left


def test_the_order_of_phases() -> None:
    """WF-1: refused with what comes before; what is not declared may begin at any time."""
    record = begun()
    with pytest.raises(ToolError, match="'draft' comes before it and has not begun") as caught:
        record.entered("review", by(1))
    assert caught.value.info.details["before"] == "draft"
    record = record.entered("plan", by(1))
    with pytest.raises(ToolError, match="'plan' comes before it and has not ended"):
        record.entered("draft", by(2))
    record = record.left("plan", by(2)).entered("draft", by(3)).left("draft", by(4)).entered("review", by(5))
    again = record.entered("draft", by(6)).entered("extra", by(7))
    assert (again.phases["draft"].begun, again.phases["review"].ended_at, again.phase) == (2, None, "extra")
    with pytest.raises(ToolError, match="it has not begun"):
        begun().left("plan", by(1))


def test_old_changes_are_counted_and_told_no_more() -> None:
    """WF-3: the record stays small."""
    record = begun()
    for n in range(CHANGES_KEPT):
        record = record.with_context(f"c{n}", by(n))
    assert len(record.changes) == CHANGES_KEPT
    assert (record.changes_before, record.counts["changes"]) == (1, CHANGES_KEPT + 1)
    assert record.context == f"c{CHANGES_KEPT - 1}"


def test_a_rollback_restores_phases_and_keeps_what_was_counted() -> None:
    """WF-2."""
    there = begun().entered("plan", by(1)).left("plan", by(2))
    later = there.entered("draft", by(3)).ended("error", by(4), error="tool.timeout")
    back = later.rolled_back("plan", there, 1, by(5, "anna"))
    assert (back.status, back.error, back.ended_at, back.branch, back.by) == ("running", None, None, 1, "anna")
    assert back.phases == there.phases
    assert [change.what for change in back.changes][-2:] == [
        "ended: error, tool.timeout",
        "rolled back to plan, branch 1",
    ]


def test_what_is_no_record_is_refused() -> None:
    """WF-3."""
    for data in (b"", b"[]", b"{}", begun().to_wire().replace(b'"plan"', b'""')):
        with pytest.raises(ValueError, match="not the record of a workflow"):
            WorkflowRecord.from_wire(data, 1)
    with pytest.raises(ValueError, match="not the end"):
        begun().ended("running", by(1))


@pytest.mark.parametrize(
    ("phases", "says"),
    [(["a", "a"], "stands twice"), ([""], "1 to 128 characters"), (["x" * 129], "1 to 128 characters")],
)
def test_phases_that_make_no_sense(phases: list[str], says: str) -> None:
    """WF-1."""
    with pytest.raises(ValueError, match=says):
        Phases(phases)
    with pytest.raises(ValueError, match="at least 1"):
        Phase("a", limit=0)


def test_ids_and_keys_of_branches() -> None:
    """WF-2: an id says which message it is and in which branch; branch 0 looks as if there were no branches."""
    assert id_in_branch("m", 0) == "m"
    assert id_in_branch("m", 1) == "m~1"
    assert id_in_branch("m~1", 3, of=1) == "m~3"
    assert id_in_branch("m~1", 3) == "m~1~3"
    long = "x" * 128
    assert id_in_branch(long, 1) != id_in_branch(long, 2)
    assert len(id_in_branch(long, 1)) <= 128
    assert document_key("w", 0, "plan") == "w.plan"
    assert document_key("w", 2, "plan") == "w.branch.2.plan"
