"""Records: what the streams say about one workflow, before a story is made of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from bus.broker.held import Held
from bus.broker.pull import Delivery
from bus.broker.subjects import BROADCAST, DUE
from bus.envelope import Envelope
from bus.workflow.completions import Completion, FailedAttempt, decode_all

MAX_MS = 1e11
MAX_DIGITS = 18


class Key(NamedTuple):
    """One message: who it was for (`*` for all), who published it (as its subject says), and its id."""

    agent: str
    sender: str
    message_id: str


class Place(NamedTuple):
    """Where a copy of a message is, or was: `work`, `later` or `event`, and its sequence there."""

    stream: str
    seq: int


@dataclass(frozen=True, slots=True)
class Copy:
    """One stored copy of a message. `is_delayed`: its time has not come; `expires_at`: the broker forgets it then."""

    key: Key
    place: Place
    kind: str
    lane: str
    envelope: Envelope
    stored_at: datetime
    expires_at: datetime | None = None
    is_delayed: bool = False

    @classmethod
    def of(cls, kind: str, delivery: Delivery, envelope: Envelope) -> Copy:
        """Reads a message of the history (`work`) or of the broadcasts (`event`)."""
        tokens = [*delivery.subject.split("."), "", "", ""]
        if kind == "event":
            key = Key(BROADCAST, tokens[3], envelope.message_id)
            return cls(key, Place("event", delivery.stream_seq), kind, BROADCAST, envelope, delivery.stored_at)
        lane = tokens[4]
        ttl = number(delivery.headers.get("Nats-TTL", ""))
        return cls(
            Key(tokens[3], tokens[5], envelope.message_id),
            Place("later" if lane == DUE else "work", number(delivery.headers.get("Nats-Sequence", ""))),
            kind,
            lane,
            envelope,
            delivery.stored_at,
            delivery.stored_at + timedelta(seconds=ttl) if 0 < ttl < MAX_MS else None,
        )


class AttemptError(NamedTuple):
    """Why an attempt failed."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a handler that is recorded. `started_at` is the replica's clock, `recorded_at` the server's.

    `error` and `again_in_ms` are None for one that handled the message, or set it aside. `seq` is that of the record.
    """

    key: Key
    number: int
    started_at: datetime
    exec_ms: float
    recorded_at: datetime
    error: AttemptError | None = None
    again_in_ms: float | None = None
    set_aside: str | None = None
    seq: int = 0

    @property
    def run(self) -> tuple[Key, int, datetime, float]:
        """What two records of one run have in common."""
        return self.key, self.number, self.started_at, self.exec_ms


def attempts_of(delivery: Delivery, workflow_id: str) -> Iterator[Attempt]:
    """The attempts of a workflow that one record of the completions stream holds.

    Raises ValueError for bytes that are no completions, or whose values cannot be.
    """
    agent = delivery.subject.rpartition(".")[2]
    completed, failed = decode_all(delivery.data)
    records: list[Completion | FailedAttempt] = [*completed, *failed]
    for one in records:
        if one.workflow_id == workflow_id:
            yield _attempt(agent, one, delivery.stored_at, delivery.stream_seq)


def _attempt(agent: str, one: Completion | FailedAttempt, recorded_at: datetime, seq: int) -> Attempt:
    # Compared and added to times of our own, so they must be of the same kind and of this world.
    numbers = (one.attempt, one.exec_ms, getattr(one, "again_in_ms", 0.0))
    if not all(isinstance(value, int | float) and 0 <= value < MAX_MS for value in numbers):
        raise ValueError("not completions: a number that cannot be")
    started_at = one.started_at if one.started_at.tzinfo is not None else one.started_at.replace(tzinfo=UTC)
    key = Key(agent, str(one.sender), str(one.message_id))
    if isinstance(one, Completion):
        aside = None if one.set_aside is None else str(one.set_aside)
        return Attempt(key, one.attempt, started_at, float(one.exec_ms), recorded_at, set_aside=aside, seq=seq)
    error = AttemptError(str(one.code), str(one.message))
    again_in_ms = float(one.again_in_ms)
    return Attempt(key, one.attempt, started_at, float(one.exec_ms), recorded_at, error, again_in_ms, seq=seq)


@dataclass(frozen=True, slots=True)
class Death:
    """One dead letter: of which copy, why, after how many attempts.

    `exec_ms` is how long its handler ran last; None when none did, or for a letter that does not say.
    """

    id: int
    place: Place
    code: str
    reason: str
    attempts: int
    stored_at: datetime
    exec_ms: float | None = None

    @classmethod
    def of(cls, delivery: Delivery) -> Death | None:
        """Reads a message of the dead letters; None for one that does not say where it came from."""
        origin = delivery.headers.get("Bus-Origin-Subject", "").split(".")
        stream = {"work": "work", "due": "later", "event": "event"}.get(origin[2] if len(origin) > 2 else "")
        if stream is None:
            return None
        code = delivery.headers.get("Bus-Dead-Code") or delivery.subject.rpartition(".")[2].replace("-", ".", 1)
        return cls(
            delivery.stream_seq,
            Place(stream, number(delivery.headers.get("Bus-Origin-Seq", ""))),
            code,
            delivery.headers.get("Bus-Dead-Reason", ""),
            number(delivery.headers.get("Bus-Attempts", "")),
            delivery.stored_at,
            _exec_ms(delivery.headers.get("Bus-Dead-Exec-Ms", "")),
        )

    def last_attempt(self, key: Key) -> Attempt | None:
        """The run of the handler that ended in it, by the server's clock; None when no handler ran."""
        if self.exec_ms is None:
            return None
        began_at = self.stored_at - timedelta(milliseconds=self.exec_ms)
        failure = AttemptError(self.code, self.reason)
        return Attempt(key, self.attempts, began_at, self.exec_ms, self.stored_at, failure)


@dataclass(slots=True)
class Records:
    """Everything that was read. `standing` are the places that still hold a message, True where it was delivered.

    `unlooked` are places that may, and were too many to look at. `replicas` is by agent, None for one that
    never ran; agents without a message are missing.
    """

    workflow_id: str
    read_at: datetime
    copies: list[Copy] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    standing: Mapping[Place, bool] = field(default_factory=dict)
    unlooked: frozenset[Place] = frozenset()
    replicas: Mapping[str, int | None] = field(default_factory=dict)
    held: Mapping[Key, Held] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def number(text: str) -> int:
    """A header's number; 0 for what is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else 0


def _exec_ms(text: str) -> float | None:
    """The header of a dead letter that says how long its handler ran; None where it says nothing that can be."""
    try:
        found = float(text)
    except ValueError:
        return None
    return found if 0 <= found < MAX_MS else None
