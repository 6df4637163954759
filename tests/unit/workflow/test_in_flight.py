"""What counts as in flight at a checkpoint (WF-2)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from bus.envelope import Envelope
from bus.workflow.checkpoints import Checkpoint
from bus.workflow.in_flight import in_flight, unknown
from bus.workflow.records import Attempt, Copy, Death, Key, Place, Records

START = datetime(2026, 1, 1, tzinfo=UTC)
AT = Checkpoint("c", 0, START + timedelta(minutes=1), "t", {}, {"done": 10, "dead": 5, "work": 100, "event": 10}, "x")


def copy(id: str, seq: int, *, cause: str | None = None, branch: int = 0, to: str = "a", **more: Any) -> Copy:
    extensions: dict[str, Any] = {"causation_id": cause} if cause else {}
    if branch:
        extensions["branch"] = branch
    kind = "event" if to == "*" else "work"
    sender = more.pop("sender", "a")
    envelope = Envelope(sender=sender, to=to, type="t", message_id=id, workflow_id="w", extensions=extensions)
    key, place = Key(to, sender, id), Place(kind, seq)
    return Copy(key, place, kind, "normal", envelope, START + timedelta(seconds=seq), **more)


def handled(id: str, seq: int, *, agent: str = "a") -> Attempt:
    return Attempt(Key(agent, "a", id), 1, START, 1.0, START, seq=seq)


def ids(records: Records, scheduled: list[Envelope] | None = None, listeners: Any = None) -> list[tuple[str, str]]:
    found = in_flight(records, AT, scheduled or [], listeners or {})
    return [(one.envelope.message_id, one.agent) for one in found]


def records(*copies: Copy, attempts: list[Attempt] | None = None, deaths: list[Death] | None = None) -> Records:
    return Records("w", START, list(copies), attempts or [], deaths or [], replicas={"a": 1, "b": 1})


def test_what_was_sent_before_and_settled_after_is_in_flight() -> None:
    """Sent after, handled before, dead before, of another branch, expired: none of these is."""
    found = records(
        copy("done", 1), copy("later done", 2), copy("dead", 3), copy("dead later", 4), copy("after", 101),
        copy("other", 5, branch=1), copy("expired", 6, expires_at=START + timedelta(seconds=30)), copy("open", 7),
        attempts=[handled("done", 10), handled("later done", 11)],
        deaths=[Death(5, Place("work", 3), "c", "r", 1, START), Death(6, Place("work", 4), "c", "r", 1, START)],
    )  # fmt: skip
    assert ids(found) == [("later done", "a"), ("dead later", "a"), ("open", "a")]


def test_what_a_cause_in_flight_sends_again_is_left_out() -> None:
    """Also when what stands between them was handled."""
    found = records(
        copy("running", 1), copy("child", 2, cause="running"), copy("grandchild", 3, cause="child"),
        copy("of a done one", 4, cause="done"), copy("done", 5),
        attempts=[handled("child", 3), handled("done", 4)],
    )  # fmt: skip
    assert ids(found) == [("running", "a"), ("of a done one", "a")]


def test_a_broadcast_is_in_flight_for_each_who_had_not_settled_it() -> None:
    """Its sender is not asked; what a listener that had not settled it sent is left out."""
    listeners = {
        "a": ["bus.v1.event.*.*.t"],
        "b": ["bus.v1.event.*.*.t"],
        "c": ["bus.v1.event.*.*.t"],
        "d": ["x.other"],
    }
    found = records(
        copy("news", 1, to="*"), copy("of b", 2, cause="news", sender="b"), copy("of c", 3, cause="news", sender="c"),
        attempts=[handled("news", 2, agent="c")],
    )  # fmt: skip
    assert ids(found, listeners=listeners) == [("news", "b"), ("of c", "a")]


def test_answers_to_clients_count_while_they_stand() -> None:
    """Nobody completes them; a client that took one has it."""
    found = records(copy("taken", 1, to="client"), copy("stands", 2, to="client"))
    found.standing = {Place("work", 2): False}
    assert ids(found) == [("stands", "client")]


def test_what_waited_for_its_time_is_sent_once() -> None:
    """What became due in the meantime is the same message; what a cause in flight schedules again is left out."""
    due, cause = copy("due", 1), copy("cause", 2)
    of_cause = copy("of cause", 3, cause="cause").envelope
    waits = copy("waits", 4, cause="done").envelope
    assert ids(records(due, cause), [due.envelope, of_cause, waits]) == [("due", "a"), ("cause", "a"), ("waits", "a")]


def test_what_nobody_can_know_any_more_is_named() -> None:
    """Older than the completions, without one, and not standing."""
    found = records(
        copy("forgotten", 1), copy("told", 2), copy("stands", 3), copy("young", 50), attempts=[handled("told", 1)]
    )
    found.standing = {Place("work", 3): True}
    since = START + timedelta(seconds=40)
    assert [key.message_id for key in unknown(found, AT, since)] == ["forgotten"]
    assert unknown(found, AT, None) == []
