"""One dead letter: what it holds, and the headers that say why it died and where it came from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bus.broker.pull import Delivery
from bus.envelope import Envelope
from bus.errors import ErrorInfo, Rejected
from bus.text import one_line

MAX_REASON_CHARS = 500
MAX_DETAILS_CHARS = 8000

ATTEMPTS = "Bus-Attempts"
EXEC_MS = "Bus-Dead-Exec-Ms"
OBJECT = "Bus-Dead-Object"
HEADERS_OBJECT = "Bus-Dead-Headers"
ORIGINAL_OBJECT = "Bus-Edited-Original"

# The broker acts on the first, and the others tell the story of a letter: what arrives under such a name is kept
# under another one, so that a sender can neither give the broker orders nor invent a story.
_OURS = ("Nats-", "Bus-Dead-", "Bus-Origin-", "Bus-Edited-", "Bus-Failed-At", ATTEMPTS)
_KEPT_AS = "Bus-Origin-Header-"
_MAX_DIGITS = 18


class NoSuchDeadLetter(LookupError):
    """There is no dead letter of this id (any more)."""

    def __init__(self, id: int) -> None:
        super().__init__(f"there is no dead letter {id}; bus dead ls lists them")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter. `id` is its sequence in the stream; `data` the bytes as they arrived, or were edited to.

    `is_whole` is False when its bytes were kept as an object that has been forgotten since; `data` is then empty.
    """

    id: int
    agent: str
    code: str
    reason: str
    attempts: int
    failed_at: datetime
    origin_subject: str
    origin_seq: int
    details: dict[str, Any]
    headers: dict[str, str]
    data: bytes
    stored_at: datetime
    is_whole: bool = True

    @classmethod
    def of(cls, delivery: Delivery, headers: Mapping[str, str], data: bytes | None) -> DeadLetter:
        """Reads a message of the stream; strangers may have written it, so nothing in it is an error."""
        tokens = delivery.subject.split(".")
        return cls(
            id=delivery.stream_seq,
            agent=tokens[3],
            code=headers.get("Bus-Dead-Code", tokens[4].replace("-", ".", 1)),
            reason=headers.get("Bus-Dead-Reason", ""),
            attempts=attempts_before(headers),
            failed_at=_moment(headers.get("Bus-Failed-At", "")) or delivery.stored_at,
            origin_subject=headers.get("Bus-Origin-Subject", ""),
            origin_seq=_number(headers.get("Bus-Origin-Seq", "")),
            details=_object(headers.get("Bus-Dead-Details", "")),
            headers=dict(headers),
            data=data or b"",
            stored_at=delivery.stored_at,
            is_whole=data is not None,
        )

    @property
    def type(self) -> str:
        """Message type: the envelope's, or the subject's when there is no readable envelope; may be empty."""
        envelope = self.envelope()
        if envelope is not None:
            return envelope.type
        tokens = self.origin_subject.split(".")
        return tokens[6] if len(tokens) == 7 else ""

    @property
    def edited_from(self) -> int | None:
        """The id of the letter that this one was edited from."""
        return _number(self.headers.get("Bus-Edited-From", "")) or None

    def envelope(self) -> Envelope | None:
        """The envelope, when the bytes are one that this version can read."""
        try:
            return Envelope.decode(self.data)
        except Rejected:
            return None


@dataclass(frozen=True, slots=True)
class Group:
    """Dead letters of one agent, code and type: how many, and which is the newest."""

    agent: str
    code: str
    type: str
    count: int
    newest_id: int
    last_failed_at: datetime


class Grouping:
    """Counts letters by agent, code and type, without keeping them."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str, str], Group] = {}

    def add(self, letter: DeadLetter) -> None:
        """Counts one; the newest comes last."""
        key = letter.agent, letter.code, letter.type
        count = self._groups[key].count + 1 if key in self._groups else 1
        self._groups[key] = Group(*key, count, letter.id, letter.failed_at)

    def groups(self) -> list[Group]:
        """The largest group first."""
        return sorted(self._groups.values(), key=lambda one: (-one.count, one.agent, one.code, one.type))


def attempts_before(headers: Mapping[str, str]) -> int:
    """How often a message was tried before it was sent again as a dead letter; 0 for one that never died."""
    told = headers.get(ATTEMPTS)
    return _number(told) if told else 0


def kept_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """A message's own headers as its dead letter keeps them."""
    return {
        f"{_KEPT_AS}{name}" if name.startswith(_OURS) else name: value
        for name, value in headers.items()
        if name != ATTEMPTS
    }


def own_headers(letter: DeadLetter) -> dict[str, str]:
    """The headers with which the message of a letter is sent again: its own, trace context included."""
    return {name: value for name, value in letter.headers.items() if not name.startswith(_OURS)}


def story_of(delivery: Delivery, failure: ErrorInfo, *, seconds: float | None = None) -> dict[str, str]:
    """The headers that say why and when a delivery died, and where it came from.

    `seconds` is how long its handler ran, None when none did.
    """
    ran = {} if seconds is None else {EXEC_MS: f"{seconds * 1000:.3f}"}
    return ran | {
        "Bus-Dead-Code": failure.code,
        "Bus-Dead-Reason": one_line(failure.message, MAX_REASON_CHARS),
        "Bus-Dead-Details": _details(failure),
        ATTEMPTS: str(attempts_before(delivery.headers) + delivery.attempt),
        "Bus-Origin-Subject": delivery.subject,
        "Bus-Origin-Seq": str(delivery.stream_seq),
        "Bus-Failed-At": datetime.now(UTC).isoformat(),
    }


def story_of_edit(letter: DeadLetter, *, subject: str, original_object: str) -> dict[str, str]:
    """All headers of a letter's edited successor, which is going to be sent to `subject`."""
    told = {
        name: value
        for name, value in letter.headers.items()
        if not name.startswith("Nats-") and name not in (OBJECT, HEADERS_OBJECT)
    }
    return told | {
        "Bus-Edited-From": str(letter.id),
        "Bus-Edited-At": datetime.now(UTC).isoformat(),
        "Bus-Edited-Subject": told.get("Bus-Edited-Subject", letter.origin_subject),
        ORIGINAL_OBJECT: original_object,
        "Bus-Origin-Subject": subject,
    }


def _details(failure: ErrorInfo) -> str:
    """The details as ASCII JSON; the schema goes first when they are too long for a header."""
    details = dict(failure.details)
    text = json.dumps(details, default=str)
    if len(text) > MAX_DETAILS_CHARS:
        details.pop("schema", None)
        text = json.dumps(details, default=str)
    return text if len(text) <= MAX_DETAILS_CHARS else "{}"


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else 0


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
