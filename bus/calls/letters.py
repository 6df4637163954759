"""Requests and results of calls as bytes, written without the checks that an `Envelope` makes of foreign fields.

A call has two envelopes, and everything in them is checked where it comes in: what the caller gives by its draft, what
the callee repeats by the decoding of the request. A test holds that `Envelope` accepts both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bus.envelope import CURRENT, codec, new_message_id, timestamps


def letter(
    *,
    sender: str,
    to: str,
    type: str,
    trace_id: str,
    workflow_id: str | None,
    session_id: str | None,
    role: str,
    status: str | None = None,
    extensions: Mapping[str, Any],
    payload: Mapping[str, Any],
) -> tuple[dict[str, Any], bytes]:
    """The fields of a new envelope, and its bytes. Raises Rejected `protocol.malformed` for what JSON cannot say."""
    fields: dict[str, Any] = {
        "version": CURRENT,
        "message_id": new_message_id(),
        "trace_id": trace_id,
        "session_id": session_id,
        "workflow_id": workflow_id,
        "from": sender,
        "to": to,
        "role": role,
        "type": type,
        "timestamp": timestamps.now(),
        "extensions": extensions,
        "payload": payload,
    }
    if status is not None:
        fields["status"] = status
    return fields, codec.render(fields)
