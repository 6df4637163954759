"""Completions: the record of what was handled, and of attempts that failed, as the completions stream keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import orjson


class Completion(NamedTuple):
    """One handled message. `started_at` and `exec_ms` are the handling agent's.

    `set_aside`: why it was settled without being handled, for one whose work nobody wants any more.
    """

    sender: str
    message_id: str
    workflow_id: str | None
    attempt: int
    started_at: datetime
    exec_ms: float
    set_aside: str | None = None


class FailedAttempt(NamedTuple):
    """One attempt that failed and is tried again after `again_in_ms`. Times are the handling agent's.

    `message` is the error in one line.
    """

    sender: str
    message_id: str
    workflow_id: str | None
    attempt: int
    started_at: datetime
    exec_ms: float
    again_in_ms: float
    code: str
    message: str


def encode(group: Sequence[Completion], failed: Sequence[FailedAttempt] = ()) -> bytes:
    """Several completions, and attempts that failed, as the body of one message."""
    completed: list[dict[str, Any]] = []
    for sender, message_id, workflow_id, attempt, started_at, exec_ms, set_aside in group:
        record = {
            "from": sender,
            "message_id": message_id,
            "workflow_id": workflow_id,
            "attempt": attempt,
            "started_at": started_at,
            "exec_ms": exec_ms,
        }
        if set_aside is not None:
            record["set_aside"] = set_aside
        completed.append(record)
    body: dict[str, Any] = {"completed": completed}
    if failed:
        # Beside the completions, where a reader that only knows those does not look.
        body["failed"] = [
            {
                "from": one.sender,
                "message_id": one.message_id,
                "workflow_id": one.workflow_id,
                "attempt": one.attempt,
                "started_at": one.started_at,
                "exec_ms": one.exec_ms,
                "again_in_ms": one.again_in_ms,
                "error": {"code": one.code, "message": one.message},
            }
            for one in failed
        ]
    return orjson.dumps(body)


class Presence(NamedTuple):
    """A replica of an agent that began, left in good order, or was found `silent` by another one."""

    replica: str
    state: str


def encode_presence(presence: Presence) -> bytes:
    """The presence of a replica as the body of one message, which completes nothing."""
    return orjson.dumps({"completed": [], "replica": presence.replica, "state": presence.state})


def decode_presence(data: bytes) -> Presence | None:
    """Reads it back; None for a record that says nothing about a replica."""
    try:
        fields = orjson.loads(data)
        replica, state = fields["replica"], fields["state"]
    except (KeyError, TypeError, ValueError):
        return None
    return Presence(replica, state) if isinstance(replica, str) and isinstance(state, str) else None


def decode_identities(data: bytes) -> list[tuple[str, str]]:
    """Sender and message id of each completion; as `decode`, but several times faster."""
    try:
        found = [(one["from"], one["message_id"]) for one in orjson.loads(data)["completed"]]
    except (KeyError, TypeError, ValueError) as problem:
        raise ValueError(f"not completions: {type(problem).__name__}") from problem
    if not all(isinstance(sender, str) and isinstance(message_id, str) for sender, message_id in found):
        raise ValueError("not completions: ids that are no strings")
    return found


def decode(data: bytes) -> list[Completion]:
    """The completions in it. Raises ValueError, naming what is wrong, for bytes that are no completions."""
    return decode_all(data)[0]


def decode_all(data: bytes) -> tuple[list[Completion], list[FailedAttempt]]:
    """The completions and the failed attempts in it. Raises ValueError as `decode`."""
    try:
        body = orjson.loads(data)
        completed = [
            Completion(
                one["from"],
                one["message_id"],
                one["workflow_id"],
                one["attempt"],
                datetime.fromisoformat(one["started_at"]),
                one["exec_ms"],
                one.get("set_aside"),
            )
            for one in body["completed"]
        ]
        failed = [
            FailedAttempt(
                one["from"],
                one["message_id"],
                one["workflow_id"],
                one["attempt"],
                datetime.fromisoformat(one["started_at"]),
                one["exec_ms"],
                one["again_in_ms"],
                one["error"]["code"],
                one["error"]["message"],
            )
            for one in body.get("failed", ())
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise ValueError(f"not completions: {type(problem).__name__}") from problem
    return completed, failed
