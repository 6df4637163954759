"""The causal tree as text."""

from datetime import UTC, datetime, timedelta

from bus import Envelope
from bus.workflow.tree import Node, Tree, Work, _link

START = datetime(2026, 1, 1, tzinfo=UTC)


def node(id: str, cause: str | None, at_ms: int, *, work_ms: float | None = None) -> Node:
    extensions = {} if cause is None else {"causation_id": cause}
    stored = START + timedelta(milliseconds=at_ms)
    envelope = Envelope(sender="a", to="b", type="step", message_id=id, phase="plan", extensions=extensions)
    work = None if work_ms is None else Work(stored + timedelta(milliseconds=2), work_ms, 1)
    return Node(envelope, "work", stored, work)


def test_lines_show_causes_times_and_what_waits() -> None:
    tree = Tree("wf", _link([node("1", None, 0, work_ms=10), node("2", "1", 5, work_ms=2000), node("3", "1", 6)]))
    assert tree.lines() == [
        "workflow wf: 3 messages in 2.01 s",
        "step  a > b     plan        waited 2.0 ms, worked 10 ms",
        "├─ step  a > b  plan        waited 2.0 ms, worked 2.00 s",
        "└─ step  a > b  plan        waiting",
    ]


def test_a_circle_of_causes_ends() -> None:
    tree = Tree("wf", _link([node("1", "2", 0), node("2", "1", 1), node("3", "3", 2)]))
    assert sorted(one.envelope.message_id for one in tree.nodes()) == ["1", "2", "3"]


def test_a_deep_chain_does_not_exhaust_the_stack() -> None:
    tree = Tree("wf", _link([node(str(n), str(n - 1) if n else None, n) for n in range(3000)]))
    assert len(tree.lines()) == 3001


def test_clocks_that_disagree_never_wait_less_than_nothing() -> None:
    early = node("1", None, 0, work_ms=1)
    early.work = Work(START - timedelta(seconds=5), 1.0, 2)
    assert early.waited_ms == 0
    assert early.outcome() == "waited 0.0 ms, worked 1.0 ms, attempt 2"


def test_an_unknown_workflow_says_so() -> None:
    assert Tree("wf", []).lines() == ["workflow wf: no messages are known"]
