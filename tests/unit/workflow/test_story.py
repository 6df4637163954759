"""The story of a workflow from its records: pure, whatever strangers claim (OBS-4, OBS-6)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from bus import Envelope
from bus.broker.pull import Delivery
from bus.cli.story import story_json, story_lines
from bus.workflow.records import Attempt, AttemptError, Copy, Death, Key, Place, Records
from bus.workflow.story import State, Status, Story, tell

START = datetime(2026, 1, 1, tzinfo=UTC)
ERROR = AttemptError("tool.timeout", "too slow")


def at(ms: float) -> datetime:
    return START + timedelta(milliseconds=ms)


def copy(
    id: str, cause: str | None = None, at_ms: float = 0, *, sender: str = "a", to: str = "b", seq: int = 0
) -> Copy:
    envelope = Envelope(
        sender=sender, to=to, type="step", message_id=id, phase="plan",
        extensions={} if cause is None else {"causation_id": cause},
    )  # fmt: skip
    return Copy(Key(to, sender, id), Place("work", seq or hash(id)), "work", "normal", envelope, at(at_ms))


def run(
    id: str, number: int = 1, *, began: float, exec_ms: float = 10, recorded: float | None = None,
    error: AttemptError | None = None, sender: str = "a", agent: str = "b",
) -> Attempt:  # fmt: skip
    recorded_at = at(began + exec_ms if recorded is None else recorded)
    again = None if error is None else 1000.0
    return Attempt(Key(agent, sender, id), number, at(began), exec_ms, recorded_at, error, again)


def story(*parts: Copy | Attempt | Death, standing: dict[Place, bool] | None = None, now_ms: float = 60_000) -> Story:
    return tell(
        Records(
            "wf",
            at(now_ms),
            [one for one in parts if isinstance(one, Copy)],
            [one for one in parts if isinstance(one, Attempt)],
            [one for one in parts if isinstance(one, Death)],
            standing=standing or {},
            replicas={"b": 1, "idle": 0},
        )
    )


def text(told: Story, width: int = 400) -> list[str]:
    return [line.plain.rstrip() for line in story_lines(told, width=width)]


def test_causes_times_and_sums() -> None:
    """Waiting is from storing to the handler's start, work is the handler's own count."""
    told = story(
        copy("1", None, 0), copy("2", "1", 15), copy("3", "1", 16),
        run("1", began=10), run("2", began=35, exec_ms=2000), run("3", began=20, exec_ms=1),
    )  # fmt: skip
    assert told.status is Status.DONE
    *lines, jaeger = text(told)
    assert jaeger == "in Jaeger   trace " + ", ".join(step.envelope.trace_id for step in told.steps)
    assert lines == [
        "workflow wf  done in 2.04 s, 3 messages",
        "most time: step worked 2.01 s in b (99%)",
        "",
        "* step  a > b     plan        waited 10 ms, worked 10 ms",
        "* ├─ step  a > b  plan        waited 20 ms, worked 2.00 s",
        "  └─ step  a > b  plan        waited 4.0 ms, worked 1.0 ms",
        "",
        "total       3 messages, worked 2.01 s, waited 34 ms; wall time 2.04 s",
        "phase  plan              3 messages, worked 2.01 s, waited 34 ms",
        "agent  b                 3 messages, worked 2.01 s, waited 34 ms",
        "* critical path",
    ]


@pytest.mark.parametrize(("offset_ms", "is_corrected"), [(-3_600_000, True), (0, False), (3_600_000, True)])
def test_clocks_that_disagree(offset_ms: float, is_corrected: bool) -> None:
    """A replica an hour off: never negative, never after what it caused, and marked."""
    told = story(
        copy("1", None, 0), copy("2", "1", 50),
        run("1", began=20 + offset_ms, exec_ms=40, recorded=65), run("2", began=60, recorded=75),
    )  # fmt: skip
    first = told.steps[0].timing
    assert first.started_at is not None
    assert first.ended_at is not None
    assert at(0) <= first.started_at <= at(50)
    assert first.ended_at <= at(65)
    assert (first.waited_ms or 0) >= 0
    assert first.is_corrected is is_corrected
    assert any("waited ~" in line for line in text(told)) is is_corrected


def test_what_became_of_each() -> None:
    """Waiting, in hand, tried again, dead, refused, expired, answered to a client, gone: each is said."""
    places = {name: Place("work", number) for number, name in enumerate("whrdxecg", 1)}
    parts = [copy(name, None, number, seq=number) for number, name in enumerate("whrdxecg", 1)]
    parts[0] = copy("w", None, 1, to="idle", seq=1)
    parts[6] = copy("c", None, 7, sender="b", to="a", seq=7)
    told = story(
        *parts,
        run("r", began=10, error=ERROR),
        Death(9, places["d"], "tool.execution_failed", "boom", 5, at(20)),
        Death(10, places["x"], "tool.validation_failed", "payload.n", 1, at(20)),
        Death(11, places["e"], "protocol.expired", "too late", 1, at(20)),
        standing={places["w"]: False, places["h"]: True, places["r"]: True, places["c"]: False},
    )
    found = {step.envelope.message_id: step.state for step in told.steps}
    assert found == {
        "w": State.WAITING, "h": State.IN_HAND, "r": State.RETRYING, "d": State.DEAD, "x": State.REFUSED,
        "e": State.EXPIRED, "c": State.FOR_CLIENT, "g": State.GONE,
    }  # fmt: skip
    assert told.status is Status.OPEN
    lines = "\n".join(text(told))
    assert "waits for idle: 1 step, in the queue for 60.00 s; no replica is running: bus run MODULE:idle" in lines
    assert "last error tool.timeout: too slow; a replica is running" in lines
    assert "dead letter 9: b step: tool.execution_failed: boom" in lines


def test_nobody_runs_is_stuck_and_the_path_leads_to_what_waits_longest() -> None:
    told = story(
        copy("1", None, 0), copy("2", "1", 20, to="idle", seq=5), run("1", began=1), standing={Place("work", 5): False}
    )
    assert told.status is Status.STUCK
    assert [step.is_critical for step in told.steps] == [True, True]
    assert story_json(told)["ended_at"] is None


def test_retries_keep_their_errors() -> None:
    told = story(
        copy("1", None, 0),
        run("1", 1, began=10, error=ERROR), run("1", 2, began=1100, error=ERROR), run("1", 3, began=2200),
    )  # fmt: skip
    (step,) = told.steps
    assert (step.state, step.tries, told.total.retries) == (State.HANDLED, 3, 2)
    assert step.timing.waited_ms == pytest.approx(2180)
    assert any("attempt 3 (before: tool.timeout: too slow)" in line for line in text(told))


def test_a_letter_that_was_sent_again_waits() -> None:
    """A dead letter that was retried is a second copy of the same message; while that stands, it is not dead."""
    death = Death(1, Place("work", 1), "tool.execution_failed", "boom", 5, at(20))
    again = replace(copy("1", None, 30), place=Place("work", 2))
    assert story(copy("1", None, 0, seq=1), death).steps[0].state is State.DEAD
    retried = story(copy("1", None, 0, seq=1), again, death, standing={Place("work", 2): False})
    assert (retried.steps[0].state, retried.steps[0].copies) == (State.WAITING, 2)


def test_the_time_of_a_handler_that_ended_in_a_dead_letter_is_work() -> None:
    """Its last attempt is in the letter alone: the time is no waiting, and what it says of a call is no refusal."""
    death = Death(7, Place("work", 1), "tool.validation_failed", "arguments.n", 2, at(5000), exec_ms=3000.0)
    told = story(copy("1", None, 0, seq=1), run("1", 1, began=10, exec_ms=500, error=ERROR), death)
    (step,) = told.steps
    assert (step.state, step.tries, told.total.retries) == (State.DEAD, 2, 1)
    assert (step.exec_ms, told.wall_ms) == (3500.0, 5000.0)
    assert step.timing.waited_ms == pytest.approx(1500)
    lines = "\n".join(text(told))
    assert "dead letter 7, waited 1.50 s, worked 3.50 s, attempt 2: tool.validation_failed: arguments.n" in lines
    assert "most time: step worked 3.50 s in b (70%)" in lines
    assert [one["exec_ms"] for one in story_json(told)["steps"][0]["attempts"]] == [500.0, 3000.0]


@pytest.mark.parametrize("told", ["", "x", "nan", "-1", "1e99", "inf"])
def test_a_letter_that_does_not_say_how_long_its_handler_ran_is_read(told: str) -> None:
    headers = {"Bus-Origin-Subject": "bus.v1.work.b.normal.a.step", "Bus-Origin-Seq": "3", "Bus-Dead-Exec-Ms": told}
    death = Death.of(Delivery("bus.v1.dead.b.tool-timeout", b"", headers, "", 7, 1, 0, 0))
    assert death is not None
    assert (death.exec_ms, death.last_attempt(Key("b", "a", "1"))) == (None, None)


def test_one_record_stored_twice_is_one_run() -> None:
    told = story(copy("1"), run("1", began=5), run("1", began=5, recorded=30))
    assert len(told.steps[0].attempts) == 1


ids = st.sampled_from([str(number) for number in range(8)])
names = st.sampled_from(["a", "b", "c"])


@given(
    st.lists(st.tuples(ids, st.none() | ids, st.integers(-5, 5), names, names), max_size=24),
    st.lists(st.tuples(ids, names, names, st.floats(-1e7, 1e7), st.floats(0, 1e7), st.booleans()), max_size=24),
)
def test_any_claimed_causes_make_a_forest(
    messages: list[tuple[str, str | None, int, str, str]], runs: list[tuple[str, str, str, float, float, bool]]
) -> None:
    """Circles, self-causation, missing parents, repeated ids: each message once, parents first, no negative time."""
    copies = [
        replace(copy(id, cause, at_ms, sender=sender, to=to), place=Place("work", number))
        for number, (id, cause, at_ms, sender, to) in enumerate(messages)
    ]
    attempts = [
        run(id, began=began, exec_ms=exec_ms, recorded=0, error=ERROR if fails else None, sender=sender, agent=agent)
        for id, sender, agent, began, exec_ms, fails in runs
    ]
    told = story(*copies, *attempts)
    assert len(told.steps) == len({one.key for one in copies})
    for index, step in enumerate(told.steps):
        if step.parent is None:
            assert step.depth == 0
        else:
            assert step.parent < index
            assert step.depth == told.steps[step.parent].depth + 1
            assert step.envelope.causation_id == told.steps[step.parent].envelope.message_id
        assert (step.timing.waited_ms or 0) >= 0
        assert step.timing.started_at is None or step.timing.started_at >= step.stored_at
    assert told.wall_ms >= 0
    assert len(list(story_lines(told))) >= len(told.steps)
    orjson.dumps(story_json(told))


def test_a_chain_of_ten_thousand_and_a_circle_of_ten_thousand() -> None:
    """No recursion, and text that grows with the number of messages, not with its square."""
    for last in (None, "9999"):
        chain = [copy(str(n), str(n - 1) if n else last, n, seq=n + 1) for n in range(10_000)]
        told = story(*chain)
        assert told.steps[-1].depth == 9_999
        assert sum(len(line) for line in text(told)) < 3_000_000
        assert sum(step.is_cut for step in told.steps) == (last is not None)


def test_an_unknown_cause_is_a_root_with_a_note() -> None:
    told = story(copy("2", "1"))
    assert told.steps[0].missing_cause == "1"
    assert "cause 1 is not known" in text(told)[2]


def test_hostile_texts_and_narrow_terminals() -> None:
    """No control character, and no line wider than the terminal, wide characters counted as two cells."""
    evil = "\x1b[31m\x07邪恶" * 40
    envelope = Envelope(sender="a", to="b", type="step", message_id="m\n\x1b]0;x", phase="阶段" * 30)
    part = Copy(Key("b", "a\x9b", "m"), Place("work", 1), "work", "normal", envelope, START)
    told = story(part, Death(1, Place("work", 1), f"tool.x{evil}", evil, 2, at(5)))
    for width in (20, 40, 80, 200):
        for line in story_lines(told, width=width):
            assert cell_len(line.plain) <= width
            assert not [char for char in line.plain if not char.isprintable()]
    assert text(story(), 80)[0] == "workflow wf  done in 0.0 ms, 0 messages"
