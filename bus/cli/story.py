"""How the story of a workflow looks in a terminal and as JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from bus.broker.subjects import BROADCAST
from bus.telemetry.context import w3c_trace_id
from bus.text import clean, one_line
from bus.workflow.story import LOST, RESTING, State, Status, Step, Story, Total, Wait

# A chain may be thousands deep; beyond this its depth is a number.
MAX_DRAWN_DEPTH = 12
MIN_LEFT, MAX_LEFT = 24, 72
PHASE_CELLS = 10
MAX_LISTED = 12
MAX_ERROR_CHARS = 500
MAX_SPENT = 3
MIN_SHARE = 0.05
PLAIN_WIDTH = 10_000

_STYLES: Mapping[State, str] = {
    State.HANDLED: "green",
    State.DEAD: "bold red",
    State.REFUSED: "bold red",
    State.EXPIRED: "red",
    State.RETRYING: "yellow",
    State.WAITING: "yellow",
    State.IN_HAND: "cyan",
    State.DELAYED: "cyan",
    State.PAUSED: "yellow",
    State.ASKING: "bold yellow",
    State.CANCELLED: "yellow",
}
_STATUS: Mapping[Status, tuple[str, str]] = {
    Status.OPEN: ("running", "cyan"),
    Status.STUCK: ("STUCK", "bold red"),
    Status.FAILED: ("ended with dead letters", "bold red"),
    Status.DONE: ("done", "green"),
}


def print_story(story: Story, console: Console) -> None:
    """Prints it on `console`: coloured and cut at the edge on a terminal, plain and whole elsewhere."""
    width = console.width if console.is_terminal else PLAIN_WIDTH
    for line in story_lines(story, width=width):
        console.print(line, soft_wrap=True, highlight=False, markup=False, no_wrap=True)


def story_lines(story: Story, *, width: int = PLAIN_WIDTH) -> Iterator[Text]:
    """The story line by line, each at most `width` cells wide: what it waits for, the tree, the sums."""
    for line in (*_header(story), Text(), *_tree(story, width), Text(), *_footer(story)):
        if cell_len(line.plain) > width:
            line.truncate(width, overflow="ellipsis")
        yield line


def story_json(story: Story) -> dict[str, Any]:
    """The story as JSON, in the shape that ops/README.md describes. Times are RFC 3339, durations milliseconds."""
    return {
        "workflow_id": story.workflow_id,
        "status": story.status,
        "began_at": story.began_at,
        "ended_at": None if story.waits else story.ended_at,
        "read_at": story.read_at,
        "wall_ms": _rounded(story.wall_ms),
        "total": _total_json(story.total),
        "by_phase": {name: _total_json(total) for name, total in story.by_phase.items()},
        "by_agent": {name: _total_json(total) for name, total in story.by_agent.items()},
        "waits": [
            {
                "agent": wait.agent,
                "type": wait.type,
                "state": wait.state,
                "count": wait.count,
                "since": wait.since,
                "replicas": wait.replicas,
                "error": wait.error,
                "again_at": wait.again_at,
            }
            for wait in story.waits
        ],
        "steps": [_step_json(step) for step in story.steps],
        "notes": list(story.notes),
    }


def _step_json(step: Step) -> dict[str, Any]:
    envelope = step.envelope
    return {
        "message_id": envelope.message_id,
        "from": step.sender,
        "to": envelope.to,
        "type": envelope.type,
        "phase": envelope.phase,
        "kind": step.kind,
        "parent": step.parent,
        "depth": step.depth,
        "missing_cause": step.missing_cause,
        "is_cut": step.is_cut,
        "is_critical": step.is_critical,
        "state": step.state,
        "copies": step.copies,
        "stored_at": step.stored_at,
        "started_at": step.timing.started_at,
        "ended_at": step.timing.ended_at,
        "waited_ms": _rounded(step.timing.waited_ms),
        "exec_ms": _rounded(step.exec_ms) if step.attempts else None,
        "is_corrected": step.timing.is_corrected,
        "tries": step.tries,
        "attempts": [
            {
                "agent": one.key.agent,
                "number": one.number,
                "started_at": one.started_at,
                "exec_ms": _rounded(one.exec_ms),
                "error": None if one.error is None else {"code": one.error.code, "message": one.error.message},
                "again_in_ms": one.again_in_ms,
            }
            for one in step.attempts
        ],
        "dead_letter": None
        if step.death is None
        else {"id": step.death.id, "code": step.death.code, "reason": step.death.reason},
    }


def _total_json(total: Total) -> dict[str, Any]:
    return {
        "messages": total.messages,
        "work_ms": _rounded(total.work_ms),
        "waited_ms": _rounded(total.waited_ms),
        "retries": total.retries,
        "dead_letters": total.dead_letters,
    }


def _rounded(ms: float | None) -> float | None:
    return None if ms is None else round(ms, 3)


def _header(story: Story) -> Iterator[Text]:
    word, style = _STATUS[story.status]
    length = f"for {duration(story.wall_ms)}" if story.waits else f"in {duration(story.wall_ms)}"
    still_open = sum(wait.count for wait in story.waits)
    count = _count(len(story.steps), "message")
    yield Text.assemble(
        ("workflow ", "dim"),
        clean(story.workflow_id),
        "  ",
        (word, style),
        f" {length}, {count}" + (f", {still_open} open" if still_open else ""),
    )
    yield from waits_lines(story)
    dead = [step for step in story.steps if step.state in LOST and step.death is not None]
    for step in dead[:MAX_LISTED]:
        assert step.death is not None
        reason = _error(step.death.code, step.death.reason)
        yield Text(clean(f"dead letter {step.death.id}: {step.envelope.to} {step.envelope.type}: {reason}"), "red")
    if len(dead) > MAX_LISTED:
        yield Text(f"and {len(dead) - MAX_LISTED} more dead letters, see below", "red")
    if spent := [clean(text) for text in islice(_spent(story), MAX_SPENT)]:
        yield Text(f"most time: {'; '.join(spent)}")
    for note in story.notes:
        yield Text(clean(f"note: {note}"), "dim")


def _spent(story: Story) -> Iterator[str]:
    """The longest waits and works on the critical path, those that a person would ask about."""
    sums = defaultdict[tuple[str, str, str, str], float](float)
    for step in story.steps:
        if step.is_critical:
            sums[step.envelope.type, "worked", "in", step.envelope.to] += step.exec_ms
            sums[step.envelope.type, "waited", "for", step.envelope.to] += step.timing.waited_ms or 0.0
    for (type, did, where, agent), ms in sorted(sums.items(), key=lambda one: -one[1]):
        if ms <= story.wall_ms * MIN_SHARE or story.wall_ms <= 0:
            return
        yield f"{type} {did} {duration(ms)} {where} {agent} ({min(1.0, ms / story.wall_ms):.0%})"


def waits_lines(story: Story) -> Iterator[Text]:
    """What a workflow waits for."""
    for wait in story.waits[:MAX_LISTED]:
        yield Text.assemble("waits for ", _wait(wait, story.read_at))
    if len(story.waits) > MAX_LISTED:
        yield Text(f"and for {len(story.waits) - MAX_LISTED} more groups of messages; bus trace lists them")


def _wait(wait: Wait, now: datetime) -> str:
    what = f"{wait.agent}: {_count(wait.count, wait.type, '')}, {_how(wait, now)}"
    if wait.state in RESTING:
        return clean(what)
    if wait.replicas is None:
        return clean(f"{what}; no agent of this name has ever run: start it, or check the name")
    if not wait.replicas:
        return clean(f"{what}; no replica is running: bus run MODULE:{wait.agent}")
    # How many pull says no more: one replica may have two pulls open.
    return clean(f"{what}; a replica is running")


def _how(wait: Wait, now: datetime) -> str:
    age = duration(max(0.0, (now - wait.since).total_seconds() * 1000))
    if wait.state is State.RETRYING:
        left_ms = 0.0 if wait.again_at is None else (wait.again_at - now).total_seconds() * 1000
        when = f"again in {duration(left_ms)}" if left_ms > 0 else "the next attempt is due"
        return f"failing for {age}, {when}, last error {one_line(wait.error or '', MAX_ERROR_CHARS)}"
    words = {
        State.WAITING: f"in the queue for {age}",
        State.IN_HAND: f"stored {age} ago, in the hands of a replica",
        State.DELAYED: f"sent {age} ago, its time has not come",
        State.PAUSED: f"paused; sent {age} ago, goes on with bus workflow resume",
        State.ASKING: f"sent {age} ago, waits for a person: bus workflow confirmations",
        State.UNSEEN: f"stored {age} ago, not looked at",
    }
    return words[wait.state]


def _tree(story: Story, width: int) -> Iterator[Text]:
    if not story.steps:
        return
    prefixes = _prefixes(story.steps)
    names = [clean(f"{step.envelope.type}  {step.sender} > {step.envelope.to}") for step in story.steps]
    widest = max(cell_len(prefix) + cell_len(name) for prefix, name in zip(prefixes, names, strict=True))
    room = min(MAX_LEFT, max(MIN_LEFT, width // 2), widest)
    for prefix, name, step in zip(prefixes, names, story.steps, strict=True):
        left = Text.assemble(("* " if step.is_critical else "  ", "bold magenta"), (prefix, "dim"), name)
        wide = cell_len(left.plain) - 2
        if wide < room:
            left.append(" " * (room - wide))
        elif wide > room:
            left.truncate(room + 2, overflow="ellipsis")
        phase = set_cell_size(clean(step.envelope.phase or ""), PHASE_CELLS)
        left.append(f"  {phase}  ", "blue")
        left.append(_outcome(step), _STYLES.get(step.state, "dim"))
        for remark in _remarks(step):
            left.append(f"  {remark}", "dim")
        yield left


def _prefixes(steps: tuple[Step, ...]) -> list[str]:
    """The branches before each step; a last child has another corner than one with a sibling below it."""
    last_child: dict[int, int] = {}
    for index, step in enumerate(steps):
        if step.parent is not None:
            last_child[step.parent] = index
    prefixes: list[str] = []
    below: list[str] = []
    for index, step in enumerate(steps):
        if step.parent is None:
            prefixes.append("")
            below.append("")
            continue
        if step.depth > MAX_DRAWN_DEPTH:
            prefixes.append(f"{below[step.parent]}[{step.depth}] ")
            below.append(below[step.parent])
            continue
        is_last = last_child[step.parent] == index
        prefixes.append(below[step.parent] + ("└─ " if is_last else "├─ "))
        below.append(below[step.parent] + ("   " if is_last else "│  "))
    return prefixes


def _outcome(step: Step) -> str:
    tries = f", attempt {step.tries}" if step.tries > 1 else ""
    failed = step.failure
    error = "" if failed is None or failed.error is None else _error(failed.error.code, failed.error.message)
    if step.state is State.HANDLED:
        return _times(step) + tries + (f" (before: {error})" if error else "")
    if step.state is State.BROADCAST:
        agents = ", ".join(dict.fromkeys(one.key.agent for one in step.attempts if one.error is None))
        return clean(f"broadcast, handled by {agents}, {_times(step)}") if agents else "broadcast"
    if step.state in (State.DEAD, State.REFUSED, State.EXPIRED):
        if step.death is None:
            return "expired: nobody took it in time"
        word = {State.DEAD: "dead letter", State.REFUSED: "refused: dead letter", State.EXPIRED: "expired: dead letter"}
        times = f", {_times(step)}" if step.death.exec_ms is not None else ""
        return f"{word[step.state]} {step.death.id}{times}{tries}: {_error(step.death.code, step.death.reason)}"
    if step.state is State.RETRYING:
        return f"failed {_count(step.tries, 'time')}, is tried again: {error}"
    if step.state in (State.SET_ASIDE, State.CANCELLED):
        beginning = "set aside: " if step.state is State.SET_ASIDE else ""
        return clean(one_line(f"{beginning}{step.attempts[-1].set_aside}", MAX_ERROR_CHARS))
    if step.state is State.GONE and step.envelope.type == "error":
        return "noted by its receiver"
    return {
        State.WAITING: "waiting",
        State.IN_HAND: "in hand" + tries,
        State.DELAYED: f"delayed until {step.envelope.extensions.get('deliver_at', 'later')}",
        State.PAUSED: "paused",
        State.ASKING: "waits for a person",
        State.UNSEEN: "open, not looked at",
        State.FOR_CLIENT: "for its client",
        State.GONE: "settled without a record",
    }.get(step.state, step.state.value)


def _times(step: Step) -> str:
    mark = "~" if step.timing.is_corrected else ""
    return f"waited {mark}{duration(step.timing.waited_ms or 0.0)}, worked {duration(step.exec_ms)}"


def _error(code: str, message: str) -> str:
    return clean(one_line(f"{code}: {message}", MAX_ERROR_CHARS))


def _remarks(step: Step) -> Iterator[str]:
    if step.copies > 1:
        yield f"stored {step.copies} times"
    if step.is_cut:
        yield "its causes are a circle"
    elif step.missing_cause is not None:
        yield clean(f"cause {step.missing_cause} is not known")


def _footer(story: Story) -> Iterator[Text]:
    yield Text(f"total       {_sums(story.total)}; wall time {duration(story.wall_ms)}")
    for title, sums in (("phase", story.by_phase), ("agent", story.by_agent)):
        for name, total in sums.items():
            if name == BROADCAST:
                continue  # nobody's time
            yield Text(f"{title}  {set_cell_size(clean(name), 16)}  {_sums(total)}", "dim")
    if any(step.is_critical for step in story.steps):
        marks = "* critical path"
        if any(step.timing.is_corrected for step in story.steps):
            marks += "   ~ the clocks disagree: moved to what the server saw"
        yield Text(marks, "dim")
    traces = list(dict.fromkeys(w3c_trace_id(step.envelope.trace_id) for step in story.steps))
    if traces:
        more = f" and {len(traces) - MAX_SPENT} more" if len(traces) > MAX_SPENT else ""
        yield Text(f"in Jaeger   trace {', '.join(traces[:MAX_SPENT])}{more}", "dim")


def _sums(total: Total) -> str:
    parts = [
        _count(total.messages, "message"),
        f"worked {duration(total.work_ms)}",
        f"waited {duration(total.waited_ms)}",
    ]
    if total.retries:
        parts.append(_count(total.retries, "retry", "retries"))
    if total.dead_letters:
        parts.append(_count(total.dead_letters, "dead letter"))
    return ", ".join(parts)


def _count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number} {noun if number == 1 else (noun + 's' if plural is None else plural or noun)}"


def duration(ms: float) -> str:
    """A duration as a person reads it: `4.2 ms`, `310 ms`, `2.10 s`, `3 min 5 s`, `2 h 4 min`."""
    if ms < 10:
        return f"{ms:.1f} ms"
    if ms < 1000:
        return f"{ms:.0f} ms"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.2f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    if seconds < 86400:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    return f"{int(seconds // 86400)} d {int(seconds % 86400 // 3600)} h"
