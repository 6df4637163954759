"""The state machine of a task, whatever happens in whatever order (REG-8)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import orjson
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bus.calls.tasks.record import LATE_S, TaskRecord, TaskState

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
WINDOW_S = 3600.0
SUCCESS = {"tool_call_id": "t1", "ok": True, "data": 1, "meta": {}}
FAILURE = {"tool_call_id": "t1", "ok": False, "error": {"code": "tool.execution_failed", "message": "no"}, "meta": {}}


def fresh(**changes: object) -> TaskRecord:
    given = {
        "id": "t1", "agent": "alice", "capability": "report.write", "sender": "me", "digest": "d", "trace_id": "t",
        "submitted_at": BEGAN, "deadline_at": BEGAN + timedelta(seconds=60), **changes,
    }  # fmt: skip
    return TaskRecord(**given)  # type: ignore[arg-type]


class Life(RuleBasedStateMachine):
    """Runs that begin, end late, are given back or die; cancels and deadlines in between; old copies at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.record = fresh()
        self.now = BEGAN
        self.runs: list[int] = []
        self.ended: TaskRecord | None = None
        self.is_cancel_confirmed = False

    def take(self, step: TaskRecord | None) -> bool:
        """What the store does: an allowed step replaces the record."""
        if step is None:
            return False
        assert self.ended is None, "a terminal state changed"
        self.record = step
        if step.is_terminal:
            self.ended = step
        return True

    @rule(seconds=st.integers(0, 20))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(replica=st.sampled_from(["a", "b"]))
    def a_copy_is_delivered(self, replica: str) -> None:
        """Also when another run is in hand, or was killed: at least once is all that the broker promises."""
        before = self.record.attempts
        if self.take(self.record.begun(replica, self.now)):
            assert self.record.attempts == before + 1
            self.runs.append(self.record.attempts)
        else:
            assert self.record.is_terminal

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def a_run_succeeds(self, data: st.DataObject) -> None:
        """Early or late, by whichever run."""
        data.draw(st.sampled_from(self.runs))
        took = self.take(self.record.succeeded(SUCCESS, None, self.now))
        assert not (took and self.is_cancel_confirmed), "success was stored after a cancel was confirmed"

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def a_run_fails(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(self.runs))
        newest = self.record.attempts
        if self.take(self.record.failed(attempt, FAILURE, self.now)):
            assert attempt == newest

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), counts=st.booleans())
    def a_run_gives_back(self, data: st.DataObject, counts: bool) -> None:
        attempt = data.draw(st.sampled_from(self.runs))
        was_it = self.record.is_run(attempt)
        assert self.take(self.record.given_back(attempt, counts=counts)) == was_it

    @rule()
    def somebody_cancels(self) -> None:
        self.take(self.record.cancelled("me", self.now))
        assert self.record.is_terminal, "a cancel always finds or makes an end"
        self.is_cancel_confirmed = self.record.state is TaskState.CANCELLED

    @rule()
    def somebody_looks(self) -> None:
        self.take(self.record.expired(self.now))
        assert self.record.is_terminal or self.now < self.record.deadline_at

    @invariant()
    def it_is_whole(self) -> None:
        """One end at most, kept as it was; what is written is what is read; it outlives its messages."""
        assert self.ended in (None, self.record)
        assert not self.is_cancel_confirmed or self.record.state is TaskState.CANCELLED
        assert TaskRecord.decode(self.record.encode()) == self.record
        assert self.record.is_terminal == (self.record.outcome is not None)
        left_s = (self.record.deadline_at - self.now).total_seconds()
        lives_s = self.record.lives_for_s(self.now, WINDOW_S)
        assert lives_s >= left_s + min(LATE_S, WINDOW_S)
        assert lives_s >= WINDOW_S or not self.record.is_terminal

    def teardown(self) -> None:
        """However it went: after the deadline whoever looks finds an end."""
        self.now = max(self.now, self.record.deadline_at)
        self.somebody_looks()
        self.it_is_whole()


test_every_life_of_a_task_has_one_end = Life.TestCase


def test_how_states_are_called_in_envelopes() -> None:
    """ENV-1: the four statuses."""
    assert [state.status for state in TaskState] == ["pending", "pending", "success", "error", "cancelled"]


def test_a_deadline_says_whether_the_work_began() -> None:
    """REG-8: what never began has expired, what ran was too slow; neither is worth a retry."""
    late = BEGAN + timedelta(seconds=60)
    running = fresh().begun("a", BEGAN)
    assert running is not None
    for record, code in ((fresh(), "protocol.expired"), (running, "tool.timeout")):
        ended = record.expired(late)
        assert ended is not None
        assert ended.outcome is not None
        assert (ended.outcome["error"]["code"], ended.outcome["error"]["retryable"]) == (code, False)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"agent": 5}, "agent"),
        ({"state": "resting"}, "resting"),
        ({"attempts": -1}, "attempts"),
        ({"deadline_at": "soon"}, "deadline_at"),
        ({"outcome": {"ok": True}}, "outcome"),
        ({"state": "cancelled"}, "outcome"),
        ({"parent": ""}, "parent"),
    ],
)
def test_garbage_in_the_bucket_is_named(changes: dict[str, object], reason: str) -> None:
    """REG-8: whoever writes there, nothing else counts as a task."""
    with pytest.raises(ValueError, match=reason):
        TaskRecord.decode(orjson.dumps({**fresh().to_wire(), **changes}))
