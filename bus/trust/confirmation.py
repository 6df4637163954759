"""A confirmation: a question to a person about exact arguments, answered once and used once (SEC-3). Pure.

    pending -> approved -> used        pending -> denied -> heard        pending -> expired -> heard

What was used, or whose refusal was heard, is over: who asks the same again asks with the next number. A transition
makes another confirmation, or None when it is not allowed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import orjson

MAX_TEXT_CHARS = 2000
MAX_ARGUMENTS_BYTES = 64 * 1024
ANYBODY = "anybody"


class ConfirmationState(StrEnum):
    """How a confirmation stands."""

    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    """Nobody answered in time, or the approval was not used in time."""
    USED = "used"
    """Approved, and used by the one run that it was for."""
    HEARD = "heard"
    """Denied or expired, and who asked has been told."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. Two questions are the same when everything but `text` and `labels` is.

    `scope` is in whose course it is asked, so exact that only a second run of the same work asks the same.
    `capability` is None for a question of a handler's own. `message_id` is the durable message in whose course it is.
    """

    asker: str
    scope: tuple[str, ...]
    text: str
    arguments: Any
    workflow_id: str | None = None
    message_id: str | None = None
    on_behalf_of: str | None = None
    capability: str | None = None
    labels: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """The SHA-256 of the arguments, as JSON with sorted keys."""
        return hashlib.sha256(orjson.dumps(self.arguments, option=orjson.OPT_SORT_KEYS)).hexdigest()

    @property
    def name(self) -> str:
        """What all its confirmations have in common: the same for the same question, whoever computes it."""
        parts = [self.asker, *self.scope, self.capability or f"?{self.text}", self.digest]
        return hashlib.sha256(orjson.dumps(parts)).hexdigest()[:20]


@dataclass(frozen=True, slots=True)
class Confirmation:
    """One confirmation. `name` and `number` make its id: the number counts how often the same thing was asked.

    `arguments` is None where they are over 64 KiB; `digest` is their SHA-256 in any case. `run` is who used it.
    """

    name: str
    number: int
    workflow_id: str | None
    message_id: str | None
    asker: str
    on_behalf_of: str | None
    text: str
    capability: str | None
    arguments: Any
    digest: str
    labels: tuple[str, ...]
    created_at: datetime
    expires_at: datetime
    valid_s: float
    who: str = ANYBODY
    state: ConfirmationState = ConfirmationState.PENDING
    answered_by: str | None = None
    answered_at: datetime | None = None
    reason: str | None = None
    run: str | None = None
    attempt: int = 0
    used_at: datetime | None = None

    @classmethod
    def asked(cls, question: Question, *, number: int, valid_s: float, now: datetime) -> Confirmation:
        """A new one."""
        arguments = question.arguments
        is_large = len(orjson.dumps(arguments)) > MAX_ARGUMENTS_BYTES
        return cls(
            question.name,
            number,
            question.workflow_id,
            question.message_id,
            question.asker,
            question.on_behalf_of,
            question.text[:MAX_TEXT_CHARS],
            question.capability,
            None if is_large else arguments,
            question.digest,
            question.labels,
            now,
            now + timedelta(seconds=valid_s),
            valid_s,
        )

    @property
    def id(self) -> str:
        """What a person approves or denies."""
        return f"{self.name}-{self.number}"

    @property
    def is_over(self) -> bool:
        """Whether asking again begins a new one."""
        return self.state in (ConfirmationState.USED, ConfirmationState.HEARD)

    def at(self, now: datetime) -> Confirmation:
        """As it is at a time: what was not answered, or used, until `expires_at` has expired."""
        waits = self.state in (ConfirmationState.PENDING, ConfirmationState.APPROVED)
        return replace(self, state=ConfirmationState.EXPIRED) if waits and self.expires_at <= now else self

    def answered(self, *, approve: bool, by: str, reason: str | None, now: datetime) -> Confirmation | None:
        """A person's answer; None when it is not pending any more. An approval is valid as long as the question was."""
        if self.at(now).state is not ConfirmationState.PENDING:
            return None
        return replace(
            self,
            state=ConfirmationState.APPROVED if approve else ConfirmationState.DENIED,
            answered_by=by,
            answered_at=now,
            reason=reason[:MAX_TEXT_CHARS] if reason else None,
            expires_at=now + timedelta(seconds=self.valid_s) if approve else self.expires_at,
        )

    def used(self, run: str, attempt: int, now: datetime) -> Confirmation | None:
        """Used by one run; None when it is not approved."""
        if self.at(now).state is not ConfirmationState.APPROVED:
            return None
        return replace(self, state=ConfirmationState.USED, run=run, attempt=attempt, used_at=now)

    def used_again(self, run: str, attempt: int) -> Confirmation | None:
        """The same work runs again, later than the run that used it, which therefore did not come to its end."""
        if self.state is not ConfirmationState.USED or attempt <= self.attempt:
            return None
        return replace(self, run=run, attempt=attempt)

    def heard(self, now: datetime) -> Confirmation | None:
        """Who asked has been told that it was denied or has expired."""
        now_is = self.at(now)
        refused = (ConfirmationState.DENIED, ConfirmationState.EXPIRED)
        return replace(now_is, state=ConfirmationState.HEARD) if now_is.state in refused else None

    def to_wire(self) -> dict[str, Any]:
        """The JSON object that stands for it."""
        return {**asdict(self), "id": self.id, "labels": list(self.labels)}

    @classmethod
    def from_wire(cls, read: Mapping[str, Any]) -> Confirmation:
        """Reads it back. Raises ValueError for what is none."""
        try:
            known = {one.name: read[one.name] for one in fields(cls)}
            for name in ("created_at", "expires_at", "answered_at", "used_at"):
                known[name] = None if known[name] is None else datetime.fromisoformat(known[name])
            known["state"], known["labels"] = ConfirmationState(known["state"]), tuple(known["labels"])
            return cls(**known)
        except (KeyError, TypeError, ValueError) as problem:
            raise ValueError(f"not a confirmation: {type(problem).__name__}: {problem}") from problem
