"""Refusals: what the sender of a rejected message hears (wire specification, section Error messages)."""

from __future__ import annotations

import json
from typing import Any

import orjson

from bus.broker.pull import Delivery
from bus.broker.subjects import BROADCAST, WorkSubject
from bus.envelope import Envelope, derive_message_id, new_trace_id
from bus.envelope.grammar import is_agent_name
from bus.errors import ErrorInfo
from bus.text import plain
from bus.workflow.branches import BRANCH

ERROR_TYPE = "error"
MAX_MESSAGE_CHARS = 2000
MAX_DETAILS_CHARS = 100_000
REFUSAL_TTL_S = 86400
STOPS_A_CHAIN = frozenset({"protocol.loop", "protocol.budget_exhausted", "protocol.expired"})


def refusals(
    delivery: Delivery,
    subject: WorkSubject | None,
    envelope: Envelope | None,
    *,
    agent: str,
    failure: ErrorInfo,
) -> list[Envelope]:
    """The `error` messages: to the sender that the subject names, and when a chain is stopped to who began it.

    There is none about a broadcast (nobody in particular was asked, and every agent would answer), none about an
    error (two agents would go on refusing each other), and none when the subject names nobody. The same refusal
    has the same id each time.
    """
    if (
        subject is None
        or subject.to == BROADCAST
        or not is_agent_name(subject.sender)
        or ERROR_TYPE in (subject.type, failure.code)
    ):
        return []
    if envelope is not None and (envelope.type == ERROR_TYPE or envelope.status == "error"):
        return []
    to = [subject.sender]
    if envelope is not None and failure.code in STOPS_A_CHAIN:
        to += [origin for origin in envelope.extensions.get("on_behalf_of", ())[:1] if origin != subject.sender]
    return [_refusal(one, delivery, subject, envelope, agent=agent, failure=failure) for one in to]


def _refusal(
    to: str,
    delivery: Delivery,
    subject: WorkSubject,
    envelope: Envelope | None,
    *,
    agent: str,
    failure: ErrorInfo,
) -> Envelope:
    about = envelope.message_id if envelope is not None else None
    extensions: dict[str, Any] = {} if about is None else {"causation_id": about, "correlation_id": about}
    if envelope is not None and BRANCH in envelope.extensions:
        extensions[BRANCH] = envelope.extensions[BRANCH]
    return Envelope(
        sender=agent,
        to=to,
        type=ERROR_TYPE,
        message_id=derive_message_id(
            subject.sender,
            about or f"seq:{delivery.stream_seq}",
            agent,
            ERROR_TYPE if to == subject.sender else f"{ERROR_TYPE}:{to}",
        ),
        trace_id=envelope.trace_id if envelope is not None else new_trace_id(),
        session_id=envelope.session_id if envelope is not None else None,
        workflow_id=envelope.workflow_id if envelope is not None else None,
        role="system",
        phase=envelope.phase if envelope is not None else None,
        status="error",
        extensions=extensions,
        payload={
            "error": _bounded(failure),
            "rejected": {
                "message_id": about,
                "type": envelope.type if envelope is not None else None,
                "subject": delivery.subject,
                "stream_seq": delivery.stream_seq,
            },
        },
    )


def _bounded(failure: ErrorInfo) -> dict[str, Any]:
    """The error as JSON of a bounded size: a handler may have put anything into its details."""
    wire = failure.to_wire()
    wire["message"] = plain(failure.message, MAX_MESSAGE_CHARS)
    try:
        details = json.dumps(wire["details"], default=str, skipkeys=True, allow_nan=False)
        fits = len(details) <= MAX_DETAILS_CHARS
        wire["details"] = orjson.loads(details) if fits else {"left_out_chars": len(details)}
    except (ValueError, RecursionError):
        wire["details"] = {"left_out": "they are not JSON"}
    return wire
