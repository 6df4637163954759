"""What of a workflow was in flight at a checkpoint, read from what the streams keep. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from bus.broker.subjects import BROADCAST, TASK
from bus.envelope import Envelope
from bus.workflow.branches import branch_of
from bus.workflow.causes import forest
from bus.workflow.checkpoints import Checkpoint
from bus.workflow.records import Copy, Key, Place, Records

Listeners = Mapping[str, Iterable[str]]


@dataclass(frozen=True, slots=True)
class Open:
    """A message that one agent had not settled."""

    agent: str
    lane: str
    envelope: Envelope


def in_flight(
    records: Records, checkpoint: Checkpoint, scheduled: Sequence[Envelope], listeners: Listeners
) -> list[Open]:
    """The messages that were in flight at a checkpoint, without those that the others send again.

    Whose cause, or the cause of whose cause, was in flight too is left out: the cause runs again and sends it. A
    broadcast is in flight for each listener that had not settled it. What waits for a client counts while it stands.
    """
    copies = [copy for copy in _unique(records.copies) if branch_of(copy.envelope) == checkpoint.branch]
    # A task has a record of its own, by which who submitted it asks for it; submitted again it is another one.
    copies = [copy for copy in copies if copy.lane != TASK]
    there = [copy for copy in copies if not copy.is_delayed and _was_there(copy.place, checkpoint)]
    handled = {one.key for one in records.attempts if one.error is None and one.seq <= checkpoint.positions["done"]}
    buried = {one.place for one in records.deaths if one.id <= checkpoint.positions["dead"]}
    open_for: list[frozenset[str]] = []
    for copy in there:
        if copy.kind == "event":
            agents = set(_listening(copy, listeners)) - {copy.key.sender}
        else:
            agents = set() if _is_gone(copy, records, buried, checkpoint.taken_at) else {copy.key.agent}
        open_for.append(frozenset(one for one in agents if copy.key._replace(agent=one) not in handled))
    above = _has_open_cause(there, open_for)
    found = [
        Open(agent, copy.lane, copy.envelope)
        for index, copy in enumerate(there)
        if not above[index]
        for agent in sorted(open_for[index])
        if copy.key.sender == copy.envelope.sender
    ]
    known = {(one.agent, one.envelope.sender, one.envelope.message_id) for one in found}
    causes = {(there[index].key.message_id, agent) for index, agents in enumerate(open_for) for agent in agents}
    for envelope in scheduled:
        key = (envelope.to, envelope.sender, envelope.message_id)
        if key not in known and (envelope.causation_id, envelope.sender) not in causes:
            found.append(Open(envelope.to, "later", envelope))
    return found


def unknown(records: Records, checkpoint: Checkpoint, completions_since: datetime | None) -> list[Key]:
    """Messages of which it cannot be told any more whether they had been settled at the checkpoint."""
    if completions_since is None:
        return []
    told = {one.key for one in records.attempts if one.error is None}
    buried = {one.place for one in records.deaths}
    return [
        copy.key
        for copy in _unique(records.copies)
        if copy.kind == "work"
        and copy.lane != TASK
        and branch_of(copy.envelope) == checkpoint.branch
        and _was_there(copy.place, checkpoint)
        and copy.stored_at < completions_since
        and copy.key not in told
        and copy.place not in buried
        and copy.place not in records.standing
        and copy.envelope.type != "error"
    ]


def _unique(copies: Iterable[Copy]) -> list[Copy]:
    first: dict[tuple[Key, str], Copy] = {}
    for copy in copies:
        first.setdefault((copy.key, copy.place.stream), copy)
    return sorted(first.values(), key=lambda copy: copy.stored_at)


def _was_there(place: Place, checkpoint: Checkpoint) -> bool:
    return place.seq <= checkpoint.positions.get(place.stream, 0)


def _is_gone(copy: Copy, records: Records, buried: set[Place], at: datetime) -> bool:
    if copy.place in buried or (copy.expires_at is not None and copy.expires_at <= at):
        return True
    # What a client waits for has no completion: it stands there, or the client has taken it.
    return records.replicas.get(copy.key.agent) is None and copy.place not in records.standing


def _listening(copy: Copy, listeners: Listeners) -> Iterable[str]:
    for agent, subjects in listeners.items():
        if any(subject.rpartition(".")[2] in (copy.envelope.type, ">") for subject in subjects):
            yield agent


def _has_open_cause(there: Sequence[Copy], open_for: Sequence[frozenset[str]]) -> list[bool]:
    tree = forest([copy.envelope for copy in there], [copy.key.agent for copy in there])
    above = [False] * len(there)
    for index in tree.order:
        parent = tree.parents[index]
        if parent is not None:
            # Of a broadcast only the handling by the sender of this message is its cause.
            cause = there[index].key.sender if there[parent].key.agent == BROADCAST else there[parent].key.agent
            above[index] = above[parent] or cause in open_for[parent]
    return above
