"""The ledger: what was published against what became of it, by identity, read from the streams themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

import orjson

from bus.broker.pull import Delivery
from bus.broker.reader import StreamReader
from bus.broker.streams import StreamNames
from bus.broker.subjects import BROADCAST
from bus.broker.survey import agents_with_consumer, waiting_messages
from bus.client import Bus
from bus.delivery.handover import HANDED_OVER
from bus.envelope import Envelope
from bus.workflow import completions

SHOWN = 10
REFUSAL = "error"


class LedgerError(AssertionError):
    """The ledger does not balance; the message names the ids that break it."""


class Identity(NamedTuple):
    """What counts once: a message of one sender to one agent. Bytes without a readable id get `seq:N`."""

    agent: str
    sender: str
    message_id: str

    def __str__(self) -> str:
        return f"{self.sender} > {self.agent} {self.message_id}"


class Run(NamedTuple):
    """One run of a handler to its end. `recorded_at` is when the broker stored that; the first attempt is 1."""

    attempt: int
    started_at: datetime
    exec_ms: float
    recorded_at: datetime


@dataclass(slots=True)
class Entry:
    """What is known of one identity: its copies in the work stream (by sequence) and what became of them."""

    type: str = ""
    copies: set[int] = field(default_factory=set)
    waiting: set[int] = field(default_factory=set)
    dead: dict[int, str] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    expires_at: datetime | None = None
    last_seen_at: datetime | None = None

    @property
    def is_settled_without_record(self) -> bool:
        """Whether a copy has left the work stream and nothing says why, or no copy was ever seen."""
        return not self.runs and not (self.copies and self.copies <= self.waiting | self.dead.keys())

    @property
    def reruns_after_completion(self) -> int:
        """How many runs began after another one of the same message was recorded as completed."""
        return sum(
            any(run.started_at > other.recorded_at for other in self.runs if other is not run) for run in self.runs
        )


class Ledger:
    """`published = handled + dead-lettered + waiting`, each identity once. Read it with `Ledger.read`.

    Each set holds identities: `handled` has a recorded completion, `dead` a dead letter and no completion,
    `waiting` is in the work stream still, `taken` left it by a way that leaves no record: a reply that a client took
    (`Bus.outcome`), a refusal that an agent without a handler for `error` noted in its log, a message whose time
    to live ended. These three are the only ones; they are in neither `published` nor `lost`.
    """

    def __init__(self, entries: dict[Identity, Entry], *, agents: frozenset[str], read_at: datetime | None) -> None:
        self.entries = entries
        unexplained = {identity for identity, entry in entries.items() if entry.is_settled_without_record}
        self.taken = frozenset(one for one in unexplained if _may_vanish(one, entries[one], agents, read_at))
        self.lost = frozenset(unexplained - self.taken)
        self.published = frozenset(entries.keys() - self.taken)
        self.handled = frozenset(one for one, entry in entries.items() if entry.runs)
        self.dead = frozenset(one for one, entry in entries.items() if entry.dead and not entry.runs) - self.lost
        self.waiting = self.published - self.handled - self.dead - self.lost

    @classmethod
    async def read(cls, bus: Bus, *, accepted: Iterable[Envelope] = ()) -> Ledger:
        """Reads history, work, dead letters and completions. Raises BrokerError.

        It can be read while messages flow: what was seen published is then found waiting or settled. `accepted` are
        envelopes that `send` returned: each must be there, even if its copy in the history is missing (a broker
        that is killed between storing and copying leaves none). A dead letter that was dropped counts as lost.
        """
        connection = bus.connection
        names, prefix = StreamNames.of(connection.settings.namespace), connection.settings.namespace
        entries: dict[Identity, Entry] = {}
        for envelope in accepted:
            if envelope.to == BROADCAST:
                continue
            _entry(entries, Identity(envelope.to, envelope.sender, envelope.message_id)).type = envelope.type
        # In the order in which a message moves, so that none is missed on its way.
        read_at = await _each(bus, names.history, f"{prefix}.v1.history.>", lambda one: _published(entries, one))
        async for message in waiting_messages(connection):
            identity, type = _identity(message.subject, message.stream_seq, message.data)
            entry = _entry(entries, identity)
            entry.type = type
            entry.copies.add(message.stream_seq)
            entry.waiting.add(message.stream_seq)
        async for dead in bus.dead_letters.list():
            identity, type = _identity(dead.origin_subject, dead.origin_seq, dead.data)
            entry = _entry(entries, identity)
            entry.type = type
            entry.copies.add(dead.origin_seq)
            entry.dead[dead.origin_seq] = dead.code
        await _each(bus, names.done, f"{prefix}.v1.done.*", lambda one: _completed(entries, one))
        return cls(entries, agents=await agents_with_consumer(connection), read_at=read_at)

    @property
    def doubled(self) -> dict[Identity, int]:
        """Handled again after a completion was recorded, and how often: the bus promises that there is none.

        It compares the worker's clock with the broker's, so it can take one for the other: `overlapped` is the rest of
        what was completed twice, and `check` refuses both.
        """
        counts = {identity: entry.reruns_after_completion for identity, entry in self.entries.items()}
        return {identity: count for identity, count in counts.items() if count}

    @property
    def overlapped(self) -> frozenset[Identity]:
        """Completed by two runs that began before either was recorded: two replicas had it in hand at once."""
        doubled = self.doubled
        return frozenset(one for one, entry in self.entries.items() if len(entry.runs) > 1 and one not in doubled)

    @property
    def redelivered(self) -> frozenset[Identity]:
        """Completed at a second or later attempt: a handler failed, was killed, or was handed back before."""
        return frozenset(one for one, entry in self.entries.items() if entry.runs and entry.runs[0].attempt > 1)

    def problems(self) -> list[str]:
        """What breaks the ledger, one line each; empty when it balances."""
        both = [
            one
            for one, entry in self.entries.items()
            if entry.runs and entry.dead and entry.copies <= entry.dead.keys()
        ]
        found = [
            ("lost: published, and neither handled, dead-lettered nor waiting", self.lost),
            ("handled again after its completion was recorded", self.doubled),
            ("completed twice, by runs that overlapped", self.overlapped),
            ("handled and dead-lettered", both),
        ]
        return [f"{len(ids)} {what}: {_listed(ids, self.entries)}" for what, ids in found if ids]

    def check(self) -> None:
        """Raises LedgerError, with the ids, unless it balances: each identity ended once, or still waits."""
        if problems := self.problems():
            raise LedgerError("\n".join([str(self), *problems]))

    def __str__(self) -> str:
        equation = (
            f"published {len(self.published)} = handled {len(self.handled)}"
            f" + dead-lettered {len(self.dead)} + waiting {len(self.waiting)}"
        )
        return equation + (f" + LOST {len(self.lost)}" if self.lost else "")


def _entry(entries: dict[Identity, Entry], identity: Identity) -> Entry:
    return entries.setdefault(identity, Entry())


def _identity(subject: str, seq: int, data: bytes) -> tuple[Identity, str]:
    """Agent, sender and type as the subject names them (it cannot be forged), the id as the bytes say."""
    tokens = [*subject.split("."), "", "", ""]
    try:
        fields = orjson.loads(data)
        message_id = fields["message_id"] if isinstance(fields, dict) else None
    except (orjson.JSONDecodeError, KeyError):
        message_id = None
    if not isinstance(message_id, str) or not message_id:
        message_id = f"seq:{seq}"
    return Identity(tokens[3], tokens[5], message_id), tokens[6]


def _published(entries: dict[Identity, Entry], copy: Delivery) -> None:
    seq = int(copy.headers.get("Nats-Sequence", "0"))
    identity, type = _identity(copy.subject, seq, copy.data)
    entry = _entry(entries, identity)
    entry.type = type
    entry.copies.add(seq)
    # A copy stands for the message that another replica could not read, and handed over.
    if (origin := copy.headers.get(HANDED_OVER, "")).isdecimal():
        entry.copies.discard(int(origin))
    entry.last_seen_at = copy.stored_at
    ttl = copy.headers.get("Nats-TTL", "")
    if ttl.isdecimal():
        entry.expires_at = copy.stored_at + timedelta(seconds=int(ttl))


def _completed(entries: dict[Identity, Entry], record: Delivery) -> None:
    agent = record.subject.rpartition(".")[2]
    for done in completions.decode(record.data):
        entry = _entry(entries, Identity(agent, done.sender, done.message_id))
        # A record whose answer was lost is stored again: the same run, not a second one.
        if not any(run[:3] == (done.attempt, done.started_at, done.exec_ms) for run in entry.runs):
            entry.runs.append(Run(done.attempt, done.started_at, done.exec_ms, record.stored_at))


def _may_vanish(identity: Identity, entry: Entry, agents: frozenset[str], read_at: datetime | None) -> bool:
    if not entry.copies:
        return False
    is_expired = entry.expires_at is not None and read_at is not None and entry.expires_at <= read_at
    return is_expired or entry.type == REFUSAL or identity.agent not in agents


async def _each(bus: Bus, stream: str, subject: str, take: Callable[[Delivery], None]) -> datetime | None:
    """Gives every message of a stream to `take`; returns when the last one was stored."""
    last: datetime | None = None
    async with StreamReader(bus.connection, stream, subjects=[subject], start_seq=1) as reader:
        async for delivery in reader.until_now():
            take(delivery)
            last = delivery.stored_at
    return last


def _listed(ids: Iterable[Identity], entries: dict[Identity, Entry]) -> str:
    ordered = sorted(ids)
    shown = "; ".join(f"{one} ({_history(entries[one])})" for one in ordered[:SHOWN])
    return shown + (f"; and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else "")


def _history(entry: Entry) -> str:
    """One identity's life in a few words, for the failure message."""
    words = [entry.type, f"{len(entry.copies)} published"]
    words += [f"handled at attempt {run.attempt} {run.started_at:%H:%M:%S.%f}" for run in entry.runs]
    words += [f"dead {code}" for code in entry.dead.values()]
    words += [f"{len(entry.waiting)} waiting"] if entry.waiting else []
    return ", ".join(words)
