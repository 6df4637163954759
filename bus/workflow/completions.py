"""Completions: the record of what was handled, as the completions stream keeps it (wire specification)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import orjson


class Completion(NamedTuple):
    """One handled message. `started_at` and `exec_ms` are the handling agent's."""

    sender: str
    message_id: str
    workflow_id: str | None
    attempt: int
    started_at: datetime
    exec_ms: float


def encode(group: Sequence[Completion]) -> bytes:
    """Several completions as the body of one message."""
    return orjson.dumps(
        {
            "completed": [
                {
                    "from": one.sender,
                    "message_id": one.message_id,
                    "workflow_id": one.workflow_id,
                    "attempt": one.attempt,
                    "started_at": one.started_at,
                    "exec_ms": one.exec_ms,
                }
                for one in group
            ]
        }
    )


def decode_identities(data: bytes) -> list[tuple[str, str]]:
    """Sender and message id of each; as `decode`, but several times faster."""
    try:
        found = [(one["from"], one["message_id"]) for one in orjson.loads(data)["completed"]]
    except (KeyError, TypeError, ValueError) as problem:
        raise ValueError(f"not completions: {type(problem).__name__}") from problem
    if not all(isinstance(sender, str) and isinstance(message_id, str) for sender, message_id in found):
        raise ValueError("not completions: ids that are no strings")
    return found


def decode(data: bytes) -> list[Completion]:
    """Reads them back. Raises ValueError, naming what is wrong, for bytes that are no completions."""
    try:
        return [
            Completion(
                one["from"],
                one["message_id"],
                one["workflow_id"],
                one["attempt"],
                datetime.fromisoformat(one["started_at"]),
                one["exec_ms"],
            )
            for one in orjson.loads(data)["completed"]
        ]
    except (KeyError, TypeError, ValueError) as problem:
        raise ValueError(f"not completions: {type(problem).__name__}") from problem
