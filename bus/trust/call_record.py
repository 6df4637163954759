"""The record of one call: who called whom for what, and what came of it (SEC-6)."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

import orjson

from bus.telemetry.redaction import Redaction

OK = "ok"
DENIED = "auth.permission_denied"
MAX_PAYLOAD_BYTES = 16 * 1024
MAX_REASON_CHARS = 500


class CallRecord(NamedTuple):
    """One call, or one attempt of a call that was tried again.

    `outcome` is `ok` or an error code; `agent` is None when nobody was found to ask, `call_id` when it could not be
    read. `ended_at` is Unix time. `arguments` and `result` are JSON texts, None unless payloads are recorded.
    """

    call_id: str | None
    sender: str
    agent: str | None
    capability: str
    outcome: str
    ended_at: float
    elapsed_ms: float
    arguments_sha256: str | None
    workflow_id: str | None
    trace_id: str | None
    on_behalf_of: tuple[str, ...] = ()
    is_replayed: bool = False
    reason: str = ""
    arguments: bytes | None = None
    result: bytes | None = None

    def to_wire(self, redaction: Redaction) -> dict[str, Any]:
        """The JSON object that is stored; what does not apply is left out, secrets are hidden."""
        wire: dict[str, Any] = {
            "call_id": self.call_id,
            "from": self.sender,
            "to": self.agent,
            "capability": self.capability,
            "outcome": self.outcome,
            "at": datetime.fromtimestamp(self.ended_at, UTC).isoformat(timespec="microseconds"),
            "elapsed_ms": self.elapsed_ms,
            "arguments_sha256": self.arguments_sha256,
            "workflow_id": self.workflow_id,
            "trace_id": self.trace_id,
        }
        if self.on_behalf_of:
            wire["on_behalf_of"] = self.on_behalf_of
        if self.is_replayed:
            wire["replayed"] = True
        if self.reason:
            wire["reason"] = self.reason[:MAX_REASON_CHARS]
        for name, text in (("arguments", self.arguments), ("result", self.result)):
            if text is not None:
                wire[name] = redaction.value(orjson.loads(text))
        return wire

    @classmethod
    def from_wire(cls, wire: Any) -> Self:
        """Reads what anybody may have written. Raises ValueError."""
        try:
            texts = {name: _text(wire[name]) for name in ("from", "capability", "outcome")}
            return cls(
                call_id=_maybe(wire.get("call_id")),
                sender=texts["from"],
                agent=_maybe(wire.get("to")),
                capability=texts["capability"],
                outcome=texts["outcome"],
                ended_at=datetime.fromisoformat(_text(wire["at"])).timestamp(),
                elapsed_ms=float(wire.get("elapsed_ms", 0.0)),
                arguments_sha256=_maybe(wire.get("arguments_sha256")),
                workflow_id=_maybe(wire.get("workflow_id")),
                trace_id=_maybe(wire.get("trace_id")),
                on_behalf_of=tuple(map(_text, wire.get("on_behalf_of", ()))),
                is_replayed=wire.get("replayed") is True,
                reason=_text(wire.get("reason", "")),
                arguments=orjson.dumps(wire["arguments"]) if "arguments" in wire else None,
                result=orjson.dumps(wire["result"]) if "result" in wire else None,
            )
        except (AttributeError, KeyError, TypeError, OverflowError) as problem:
            raise ValueError(f"it is no record of a call: {problem}") from None


def canonical(value: Any) -> bytes | None:
    """JSON with sorted keys and without blanks, of which the digest is made; None for what JSON has no word for."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return None


def digest_of(text: bytes | None) -> str | None:
    """The SHA-256 of a canonical text, as hex."""
    return None if text is None else hashlib.sha256(text).hexdigest()


def kept(text: bytes | None) -> bytes | None:
    """A text as a record keeps it: one that is too long is only told."""
    if text is None or len(text) <= MAX_PAYLOAD_BYTES:
        return text
    return orjson.dumps(f"[{len(text)} bytes, over the {MAX_PAYLOAD_BYTES} that a record keeps]")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.100} is no text")
    return value


def _maybe(value: Any) -> str | None:
    return None if value is None else _text(value)
