"""Parked messages: copies in a stream of their own, with what is needed to send them again (WF-7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from bus.broker.pull import Delivery

# On a parked message: the subject that it is sent to again, and until when it waits at most.
SUBJECT = "Bus-Held-Subject"
UNTIL = "Bus-Held-Until"
# On a message that was parked and is sent again: its place among the parked, and the newest decision of that time.
MARK = "Bus-Held"
PAUSED = "paused"
NO_WORKFLOW = "-"


@dataclass(frozen=True, slots=True)
class Mark:
    """What a message says that was parked and sent again."""

    seq: int
    revision: int

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Mark | None:
        """Reads the header; None when there is none, or somebody made it up."""
        seq, _, revision = headers.get(MARK, "").partition(":")
        if not (seq.isascii() and seq.isdigit() and revision.isascii() and revision.isdigit()):
            return None
        return cls(int(seq), int(revision)) if len(seq) + len(revision) < 36 else None

    def to_header(self) -> str:
        """As it is written."""
        return f"{self.seq}:{self.revision}"


@dataclass(frozen=True, slots=True)
class Held:
    """One parked message. `why` is `paused`, or the id of the confirmation that it waits for."""

    seq: int
    agent: str
    workflow: str
    lane: str
    why: str
    subject: str
    until: datetime | None
    headers: Mapping[str, str]
    data: bytes
    stored_at: datetime
    stored_ns: int

    @classmethod
    def of(cls, delivery: Delivery) -> Held | None:
        """Reads a message of the stream; None for a stranger's."""
        tokens = delivery.subject.split(".")
        if len(tokens) != 7 or SUBJECT not in delivery.headers:
            return None
        until = delivery.headers.get(UNTIL)
        try:
            return cls(
                delivery.stream_seq,
                tokens[3],
                tokens[4],
                tokens[5],
                tokens[6],
                delivery.headers[SUBJECT],
                None if until is None else datetime.fromisoformat(until),
                delivery.headers,
                delivery.data,
                delivery.stored_at,
                delivery.stored_ns,
            )
        except ValueError:
            return None

    def again(self, revision: int) -> dict[str, str]:
        """The headers with which it is sent again; the server takes two of one `revision` for one."""
        own = {name: value for name, value in self.headers.items() if not name.startswith(("Nats-", "Bus-Held"))}
        return own | {
            MARK: Mark(self.seq, revision).to_header(),
            "Nats-Msg-Id": f"held:{self.seq}:{self.stored_ns}:{revision}",
        }
