"""The record of one call: who called whom for what, and what came of it (SEC-6)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple, Self

import orjson

from bus.envelope import Envelope, timestamps

OK = "ok"
DENIED = "auth.permission_denied"
MAX_PAYLOAD_BYTES = 16 * 1024
PAYLOADS = ("arguments", "result")


Wire = dict[str, Any]


def written(
    call_id: str | None,
    sender: str,
    agent: str | None,
    capability: str,
    outcome: str,
    elapsed_ms: float,
    arguments: bytes | None,
    envelope: Envelope | None,
) -> Wire:
    """The JSON object of a call that ends now. `envelope` has its ids: the call's own, or the one that caused it."""
    return {
        "call_id": call_id,
        "from": sender,
        "to": agent,
        "capability": capability,
        "outcome": outcome,
        "at": timestamps.now(),
        "elapsed_ms": elapsed_ms,
        "arguments_sha256": None if arguments is None else sha256(arguments).hexdigest(),
        "workflow_id": None if envelope is None else envelope.workflow_id,
        "trace_id": None if envelope is None else envelope.trace_id,
    }


class CallRecord(NamedTuple):
    """One call, or one attempt of a call that was tried again, as it is read.

    `outcome` is `ok` or an error code; `agent` is None when nobody was found to ask, `call_id` when it could not be
    read. `wire` is all of it as it is stored.
    """

    call_id: str | None
    sender: str
    agent: str | None
    capability: str
    outcome: str
    ended_at: datetime
    elapsed_ms: float
    workflow_id: str | None
    on_behalf_of: tuple[str, ...]
    is_replayed: bool
    reason: str
    wire: Mapping[str, Any]

    @classmethod
    def from_wire(cls, wire: Any) -> Self:
        """Reads what anybody may have written. Raises ValueError."""
        try:
            return cls(
                call_id=_maybe(wire["call_id"]),
                sender=_text(wire["from"]),
                agent=_maybe(wire["to"]),
                capability=_text(wire["capability"]),
                outcome=_text(wire["outcome"]),
                ended_at=_moment(wire["at"]),
                elapsed_ms=float(wire.get("elapsed_ms", 0.0)),
                workflow_id=_maybe(wire.get("workflow_id")),
                on_behalf_of=tuple(map(_text, wire.get("on_behalf_of", ()))),
                is_replayed=wire.get("replayed") is True,
                reason=_text(wire.get("reason", "")),
                wire=wire,
            )
        except (AttributeError, KeyError, TypeError, OverflowError) as problem:
            raise ValueError(f"it is no record of a call: {problem}") from None


def canonical(value: Any) -> bytes | None:
    """JSON with sorted keys and without blanks, of which the digest is made; None for what JSON has no word for."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return None


def kept(text: bytes | None) -> bytes | None:
    """A text as a record keeps it: one that is too long is only told."""
    if text is None or len(text) <= MAX_PAYLOAD_BYTES:
        return text
    return orjson.dumps(f"[{len(text)} bytes, over the {MAX_PAYLOAD_BYTES} that a record keeps]")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.100} is no text")
    return value


def _moment(value: Any) -> datetime:
    moment = datetime.fromisoformat(_text(value))
    if moment.tzinfo is None:
        raise TypeError(f"{value!r} has no zone")
    return moment


def _maybe(value: Any) -> str | None:
    return None if value is None else _text(value)
