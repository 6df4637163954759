"""The story of a workflow: which message caused which, how long each waited and worked, what it waits for now.

Everything here is pure: `tell` makes a story from what was read (`records.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from bus.broker.held import PAUSED
from bus.envelope import Envelope
from bus.workflow import causes
from bus.workflow.clocks import Timing, timing
from bus.workflow.records import Attempt, Copy, Death, Key, Place, Records

# How the reason begins for which something was set aside (`Decision.told`).
CANCELLED = "cancelled"
NEVER_RAN_PREFIXES = ("protocol.", "auth.", "tool.validation_failed")


class State(StrEnum):
    """What became of a message. The first seven are open: something is still to come."""

    WAITING = "waiting"
    """In the queue of its agent."""
    IN_HAND = "in_hand"
    """Delivered to a replica and not settled."""
    RETRYING = "retrying"
    """An attempt failed, the next one is to come."""
    DELAYED = "delayed"
    """Its time (`deliver_at`) has not come."""
    PAUSED = "paused"
    """Parked, because a person has paused it; it goes on when it is resumed."""
    ASKING = "asking"
    """Parked, because its handler waits for a person's answer."""
    UNSEEN = "unseen"
    """Too many are open to look at each; this one was not looked at."""
    HANDLED = "handled"
    SET_ASIDE = "set_aside"
    """Settled without being handled: of a branch that was rolled back."""
    CANCELLED = "cancelled"
    """Settled without being handled to its end, because a person cancelled it."""
    BROADCAST = "broadcast"
    """Sent to `*`; who handled it is in the attempts."""
    DEAD = "dead"
    """A dead letter: handling it failed."""
    REFUSED = "refused"
    """A dead letter: refused before anything ran."""
    EXPIRED = "expired"
    """Nobody took it in time."""
    FOR_CLIENT = "for_client"
    """An answer to a client, which nobody has to take."""
    GONE = "gone"
    """Settled without a record: taken by a client, its dead letter dropped, or its completion forgotten."""


OPEN = frozenset(
    {State.WAITING, State.IN_HAND, State.RETRYING, State.DELAYED, State.PAUSED, State.ASKING, State.UNSEEN}
)
# Nobody has to run for these to wait.
RESTING = frozenset({State.DELAYED, State.PAUSED, State.ASKING})
LOST = frozenset({State.DEAD, State.REFUSED})


class Status(StrEnum):
    """How the workflow stands."""

    OPEN = "open"
    """Something is still to come, and somebody is there to do it."""
    STUCK = "stuck"
    """Something is still to come, and nobody runs who could do it."""
    FAILED = "failed"
    """Nothing is to come, and there are dead letters."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Step:
    """One message of a story. Times are the server's; those of a handler are corrected to fit them.

    `parent` is the index of the step that caused it, None for a root. `missing_cause` names a cause that is not
    known; `is_cut` says that its cause led back to itself. `waited_ms` is the time until the last attempt began
    without the work of earlier ones, None before the first. `is_corrected`: the replica's clock disagreed with
    the server's. `copies` counts how often the same message was stored.
    """

    envelope: Envelope
    sender: str
    kind: str
    stored_at: datetime
    state: State
    attempts: tuple[Attempt, ...]
    death: Death | None
    copies: int
    timing: Timing
    parent: int | None
    depth: int
    missing_cause: str | None
    is_cut: bool
    is_critical: bool

    @property
    def is_open(self) -> bool:
        """Whether something is still to come."""
        return self.state in OPEN

    @property
    def tries(self) -> int:
        """How many attempts are known of, at least."""
        numbers = [one.number for one in self.attempts] + [self.death.attempts if self.death else 0]
        return max(numbers, default=0)

    @property
    def failure(self) -> Attempt | None:
        """The last attempt that failed."""
        failed = [one for one in self.attempts if one.error is not None]
        return failed[-1] if failed else None

    @property
    def exec_ms(self) -> float:
        """The work of all attempts that are known."""
        return sum(one.exec_ms for one in self.attempts)


@dataclass(frozen=True, slots=True)
class Wait:
    """What a workflow waits for: `count` messages of one type in one state, for one agent, the oldest since `since`.

    `replicas` is how many run now; None when no agent of this name ever ran. `error` is the last one of a retry,
    `again_at` when the earliest is tried again.
    """

    agent: str
    type: str
    state: State
    count: int
    since: datetime
    replicas: int | None
    error: str | None
    again_at: datetime | None


@dataclass(frozen=True, slots=True)
class Total:
    """Sums over some messages. Times are of all handlers together, so they may exceed the wall time."""

    messages: int = 0
    work_ms: float = 0.0
    waited_ms: float = 0.0
    retries: int = 0
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class Story:
    """All that is known of one workflow. `steps` has parents before children; it is empty for an unknown id."""

    workflow_id: str
    status: Status
    read_at: datetime
    steps: tuple[Step, ...]
    waits: tuple[Wait, ...]
    total: Total
    by_phase: Mapping[str, Total]
    by_agent: Mapping[str, Total]
    notes: tuple[str, ...]

    @property
    def began_at(self) -> datetime:
        """When the first message was stored."""
        return min((step.stored_at for step in self.steps), default=self.read_at)

    @property
    def ended_at(self) -> datetime:
        """When the last thing happened; now, while something is still to come."""
        if self.waits:
            return self.read_at
        return max((step.timing.ended_at or step.stored_at for step in self.steps), default=self.read_at)

    @property
    def wall_ms(self) -> float:
        """From the first message to the end."""
        return (self.ended_at - self.began_at).total_seconds() * 1000

    def roots(self) -> Iterator[Step]:
        """The steps that nothing known caused."""
        return (step for step in self.steps if step.parent is None)


@dataclass(slots=True)
class _Message:
    """What is known of one message, while a story is made."""

    copies: list[Copy]
    attempts: list[Attempt]
    death: Death | None = None


def tell(records: Records) -> Story:
    """Makes the story. Whatever strangers wrote: each message is one step, and the steps are a forest."""
    messages = _gathered(records)
    keys = sorted(messages, key=lambda key: (messages[key].copies[0].stored_at, key))
    firsts = [messages[key].copies[0] for key in keys]
    forest = causes.forest([one.envelope for one in firsts], [key.agent for key in keys])
    senders = {key.sender for key in keys}
    read_at = max([records.read_at, *(one.stored_at for one in firsts)])
    first_child: dict[int, datetime] = {}
    for index, parent in enumerate(forest.parents):
        if parent is not None:
            earliest = first_child.get(parent, firsts[index].stored_at)
            first_child[parent] = min(earliest, firsts[index].stored_at)
    states = [_state(messages[key], key, records, senders) for key in keys]
    timings = [
        timing(firsts[index].stored_at, messages[key].attempts, first_child.get(index), messages[key].death)
        for index, key in enumerate(keys)
    ]
    critical = _critical(forest.parents, firsts, states, timings)
    place = {index: order for order, index in enumerate(forest.order)}
    steps = []
    for index in forest.order:
        known, first, parent = messages[keys[index]], firsts[index], forest.parents[index]
        steps.append(
            Step(
                envelope=first.envelope,
                sender=keys[index].sender,
                kind=first.kind,
                stored_at=first.stored_at,
                state=states[index],
                attempts=tuple(known.attempts),
                death=known.death,
                copies=len(known.copies),
                timing=timings[index],
                parent=None if parent is None else place[parent],
                depth=forest.depths[index],
                missing_cause=first.envelope.causation_id if index in forest.missing else None,
                is_cut=index in forest.cut,
                is_critical=index in critical,
            )
        )
    waits = _waits(steps, records)
    return Story(
        workflow_id=records.workflow_id,
        status=_status(steps, waits),
        read_at=read_at,
        steps=tuple(steps),
        waits=waits,
        total=_sum(steps),
        by_phase=_sums((step.envelope.phase or "-", step) for step in steps),
        by_agent=_sums((step.envelope.to, step) for step in steps),
        notes=tuple(records.notes),
    )


def _gathered(records: Records) -> dict[Key, _Message]:
    messages: dict[Key, _Message] = {}
    keys: dict[Place, Key] = {}
    runs: set[object] = set()
    for copy in records.copies:
        known = messages.setdefault(copy.key, _Message([], []))
        if keys.get(copy.place) != copy.key:
            known.copies.append(copy)
        keys[copy.place] = copy.key
    for attempt in records.attempts:
        # A record whose answer was lost is stored again: the same run, not a second one.
        found = messages.get(attempt.key) or messages.get(attempt.key._replace(agent="*"))
        if found is not None and attempt.run not in runs:
            runs.add(attempt.run)
            found.attempts.append(attempt)
    for death in records.deaths:
        key = keys.get(death.place)
        if key is not None:
            messages[key].death = death
            if (last := death.last_attempt(key)) is not None:
                messages[key].attempts.append(last)
    for message in messages.values():
        message.copies.sort(key=lambda one: one.stored_at)
        message.attempts.sort(key=lambda one: (one.recorded_at, one.number))
    return messages


def _state(message: _Message, key: Key, records: Records, senders: set[str]) -> State:
    if message.copies[0].kind == "event":
        return State.BROADCAST
    if any(one.error is None for one in message.attempts):
        whys = [one.set_aside for one in message.attempts if one.error is None]
        if not all(whys):
            return State.HANDLED
        return State.CANCELLED if str(whys[-1]).startswith(CANCELLED) else State.SET_ASIDE
    died_at = message.death.place if message.death is not None else None
    here = [one for one in message.copies if one.place in records.standing and one.place != died_at]
    held = records.held.get(key)
    if held is not None and not any(one.stored_at > held.stored_at for one in here):
        return State.PAUSED if held.why == PAUSED else State.ASKING
    if here:
        if any(one.place.stream == "later" and one.is_delayed for one in here):
            return State.DELAYED
        if message.attempts and message.attempts[-1].recorded_at >= here[-1].stored_at:
            return State.RETRYING
        if key.agent in senders and records.replicas.get(key.agent) is None:
            return State.FOR_CLIENT
        return State.IN_HAND if any(records.standing[one.place] for one in here) else State.WAITING
    if message.death is not None:
        code = message.death.code
        if code == "protocol.expired":
            return State.EXPIRED
        never_ran = message.death.exec_ms is None and code.startswith(NEVER_RAN_PREFIXES)
        return State.REFUSED if never_ran else State.DEAD
    if any(one.place in records.unlooked for one in message.copies):
        return State.UNSEEN
    last = message.copies[-1]
    if last.expires_at is not None and last.expires_at <= records.read_at:
        return State.EXPIRED
    return State.GONE


def _critical(
    parents: Sequence[int | None], firsts: Sequence[Copy], states: Sequence[State], timings: Sequence[Timing]
) -> set[int]:
    """The chain of causes to what ended last, or, while something is to come, to what has waited longest."""
    if not firsts:
        return set()
    still_open = [index for index, state in enumerate(states) if state in OPEN]
    if still_open:
        current: int | None = min(still_open, key=lambda index: firsts[index].stored_at)
    else:
        current = max(range(len(firsts)), key=lambda index: timings[index].ended_at or firsts[index].stored_at)
    path: set[int] = set()
    while current is not None:
        path.add(current)
        current = parents[current]
    return path


def _waits(steps: Iterable[Step], records: Records) -> tuple[Wait, ...]:
    groups: dict[tuple[str, str, State], list[Step]] = defaultdict(list)
    for step in steps:
        if step.is_open:
            groups[step.envelope.to, step.envelope.type, step.state].append(step)
    waits = []
    for (agent, type, state), group in groups.items():
        failures = [step.failure for step in group if state is State.RETRYING and step.failure is not None]
        newest = max(failures, key=lambda one: one.recorded_at, default=None)
        again = [one.recorded_at + timedelta(milliseconds=one.again_in_ms or 0) for one in failures]
        waits.append(
            Wait(
                agent,
                type,
                state,
                len(group),
                min(step.stored_at for step in group),
                records.replicas.get(agent),
                None if newest is None or newest.error is None else f"{newest.error.code}: {newest.error.message}",
                min(again, default=None),
            )
        )
    return tuple(sorted(waits, key=lambda one: one.since))


def _status(steps: Sequence[Step], waits: Sequence[Wait]) -> Status:
    if waits:
        return Status.OPEN if any(one.replicas or one.state in RESTING for one in waits) else Status.STUCK
    return Status.FAILED if any(step.state in LOST for step in steps) else Status.DONE


def _sum(steps: Iterable[Step]) -> Total:
    counted = list(steps)
    return Total(
        len(counted),
        sum(step.exec_ms for step in counted),
        sum(step.timing.waited_ms or 0.0 for step in counted),
        sum(max(0, step.tries - 1) for step in counted),
        sum(step.state in LOST for step in counted),
    )


def _sums(named: Iterable[tuple[str, Step]]) -> dict[str, Total]:
    groups: dict[str, list[Step]] = {}
    for name, step in named:
        groups.setdefault(name, []).append(step)
    return {name: _sum(group) for name, group in groups.items()}
