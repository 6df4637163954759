"""Comparison: what a changed agent sent in a replay beside what it had sent (WF-8). Everything here is pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bus.envelope import Envelope

MAX_CHANGES = 20
MAX_SHOWN_CHARS = 200
_FIELDS = ("to", "type", "phase", "role", "status")


class Verdict(StrEnum):
    """How one message of the replay stands to the recorded one."""

    SAME = "same"
    CHANGED = "changed"
    ADDED = "added"
    """Nothing like it was recorded."""
    MISSING = "missing"
    """It was recorded, and the replay did not send it."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference: the dotted path, and the two values as they are."""

    path: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Compared:
    """One message or call of the agent: `what` is `message`, `call` or `outcome` (how the handling ended).

    `led_to` counts the recorded messages that are not replayed, because what had led to them is missing.
    """

    verdict: Verdict
    what: str
    name: str
    phase: str | None = None
    changes: tuple[Change, ...] = ()
    led_to: int = 0


@dataclass(frozen=True, slots=True)
class Handling:
    """One message to the agent, and what the agent did about it."""

    type: str
    sender: str
    message_id: str
    deeds: tuple[Compared, ...]

    @property
    def is_same(self) -> bool:
        """Whether the agent did the same as then."""
        return all(one.verdict is Verdict.SAME for one in self.deeds)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A replay beside its recording. `unfed` are recorded messages to the agent that nothing led to this time."""

    workflow_id: str
    agent: str
    handlings: tuple[Handling, ...]
    unfed: int = 0

    @property
    def is_same(self) -> bool:
        """Whether nothing is different."""
        return not self.unfed and all(handling.is_same for handling in self.handlings)

    def count(self) -> dict[str, int]:
        """How many messages and calls have which verdict."""
        found = [one.verdict for handling in self.handlings for one in handling.deeds if one.what != "outcome"]
        return {verdict.value: found.count(verdict) for verdict in Verdict}

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "workflow_id": self.workflow_id,
            "agent": self.agent,
            "is_same": self.is_same,
            "counts": self.count(),
            "not_fed": self.unfed,
            "handlings": [
                {
                    "type": handling.type,
                    "from": handling.sender,
                    "message_id": handling.message_id,
                    "deeds": [
                        {
                            "verdict": one.verdict.value,
                            "what": one.what,
                            "name": one.name,
                            "phase": one.phase,
                            "changes": [
                                {"path": change.path, "before": change.before, "after": change.after}
                                for change in one.changes
                            ],
                            "led_to": one.led_to,
                        }
                        for one in handling.deeds
                    ],
                }
                for handling in self.handlings
            ],
        }

    def check(self) -> None:
        """Raises AssertionError with every difference, for tests."""
        if not self.is_same:
            raise AssertionError("\n".join(self.lines()))

    def lines(self) -> Iterator[str]:
        """The differences, one line each, and a line that counts."""
        for handling in self.handlings:
            for one in handling.deeds:
                if one.verdict is Verdict.SAME:
                    continue
                yield f"{handling.type} from {handling.sender}: {one.what} {one.name} is {one.verdict}"
                for change in one.changes:
                    yield f"    {change.path}: {shown(change.before)} -> {shown(change.after)}"
        if self.unfed:
            yield f"{self.unfed} recorded messages were not given: what had led to them is missing"
        counts = ", ".join(f"{count} {verdict}" for verdict, count in self.count().items())
        yield f"{self.agent} in the workflow {self.workflow_id}: {counts}"


def pair(recorded: Sequence[Envelope], replayed: Sequence[Envelope]) -> list[tuple[int | None, int | None]]:
    """Which of the replayed messages stands for which recorded one, by their indices.

    A message that says what it was derived from has the same id in both; others are paired by receiver and type,
    in their order.
    """
    pairs: list[tuple[int | None, int | None]] = []
    left = dict(enumerate(replayed))
    partners: dict[int, int] = {}
    for same in (_id, _kind):
        for index, one in enumerate(recorded):
            if index in partners:
                continue
            found = next((other for other, candidate in left.items() if same(candidate) == same(one)), None)
            if found is not None:
                partners[index] = found
                del left[found]
    pairs += [(index, partners.get(index)) for index in range(len(recorded))]
    pairs += [(None, index) for index in left]
    return pairs


def compared(
    recorded: Envelope | None, replayed: Envelope | None, *, ignore: Iterable[str], led_to: int = 0
) -> Compared:
    """One message beside the other; `ignore` are patterns of dotted paths such as `payload.*.at`."""
    one = recorded or replayed
    assert one is not None
    name = f"{one.type} to {one.to}"
    if recorded is None:
        return Compared(Verdict.ADDED, "message", name, one.phase)
    if replayed is None:
        return Compared(Verdict.MISSING, "message", name, one.phase, led_to=led_to)
    changes = differences(_facts(recorded), _facts(replayed), ignore)
    return Compared(Verdict.CHANGED if changes else Verdict.SAME, "message", name, one.phase, tuple(changes))


def differences(before: Any, after: Any, ignore: Iterable[str], path: str = "") -> list[Change]:
    """Where two JSON values differ, at most 20 places; a path that matches one of `ignore` is passed over."""
    patterns = tuple(ignore)
    found: list[Change] = []
    _differ(before, after, patterns, path, found)
    return found[:MAX_CHANGES]


def shown(value: Any) -> str:
    """A value in a line."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[: MAX_SHOWN_CHARS - 1]}…"


def _differ(before: Any, after: Any, ignore: tuple[str, ...], path: str, found: list[Change]) -> None:
    if len(found) >= MAX_CHANGES or any(fnmatch.fnmatchcase(path, pattern) for pattern in ignore):
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in dict.fromkeys([*before, *after]):
            _differ(before.get(name), after.get(name), ignore, f"{path}.{name}" if path else name, found)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            _differ(one, other, ignore, f"{path}.{index}", found)
    elif before != after or type(before) is not type(after):
        found.append(Change(path, before, after))


def _facts(envelope: Envelope) -> dict[str, Any]:
    facts = {name: getattr(envelope, name) for name in _FIELDS}
    return {**facts, "payload": envelope.payload}


def _id(envelope: Envelope) -> Any:
    return envelope.message_id


def _kind(envelope: Envelope) -> Any:
    return envelope.to, envelope.type
