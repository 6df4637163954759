"""Bytes to fields, and the check of the fields: what envelope 1.2 says of each (ENV-1, ENV-2, SEC-7).

The check is written by hand because it runs for every message; a property test holds it equal to
`schemas/envelope/1.2.json`.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import orjson

from bus.envelope import extensions, timestamps
from bus.envelope.grammar import (
    AGENT_NAME_RULE,
    ID_RULE,
    MAX_ID_CHARS,
    MAX_NAME_CHARS,
    MISSING,
    TYPE_NAME_RULE,
    is_agent_name,
    is_type_name,
    malformed,
)
from bus.errors import Rejected

MAX_BYTES: Final = 1024 * 1024
MAX_DEPTH: Final = 64
MAX_PHASE_CHARS: Final = 64

FIELDS: Final = (
    "version",
    "message_id",
    "trace_id",
    "session_id",
    "workflow_id",
    "from",
    "to",
    "role",
    "type",
    "phase",
    "status",
    "timestamp",
    "extensions",
    "payload",
)
ROLES: Final = ("user", "assistant", "system", "tool")
STATUSES: Final = ("pending", "success", "error", "cancelled")

_CONTAINERS: Final = frozenset({dict, list})
_SEQUENCES: Final = (list, tuple)


def parse(data: bytes, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> dict[str, Any]:
    """Read the JSON object that a message is, before any of its fields is looked at.

    Raises Rejected: `protocol.too_large` over `max_bytes`; `protocol.malformed` with details.path when the
    bytes are not UTF-8 JSON, not an object, or nested deeper than `max_depth` (the object itself is level 1).
    """
    if len(data) > max_bytes:
        raise Rejected(
            "protocol.too_large",
            f"the message has {len(data)} bytes, the limit is {max_bytes}; send the payload by reference",
            limit=max_bytes,
            size=len(data),
        )
    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError as problem:
        raise _undecodable(problem, max_depth) from None
    if type(fields) is not dict:
        raise malformed("$", "a JSON object", fields)
    # Few opening brackets cannot nest deep. Taking them out counts them three times faster than `count` does.
    brackets = len(data) - len(data.replace(b"{", b"").replace(b"[", b""))
    if brackets > max_depth and _is_deeper(fields, max_depth):
        raise _too_deep(_deepest(fields, max_depth), max_depth)
    return fields


def render(fields: Mapping[str, Any]) -> bytes:
    """Write checked fields as UTF-8 JSON.

    Raises Rejected `protocol.malformed` with details.path for what JSON cannot say: NaN, infinity, integers
    beyond 64 bits, lone surrogates, objects of Python.
    """
    try:
        data = orjson.dumps(fields)
    except TypeError as problem:
        raise _unwritable("$", str(problem)) from None
    # orjson writes NaN and infinity as null: a null that is not one of the top level needs a closer look.
    nulls = data.count(b"null")
    if nulls > (fields["session_id"] is None) + (fields["workflow_id"] is None) and nulls > sum(
        value is None for value in fields.values()
    ):
        for name, value in fields.items():
            if _has_odd_float(value):
                raise _unwritable(name, "NaN and infinity are not JSON numbers")
    return data


def check_fields(fields: Mapping[str, Any], *, timed: bool = True) -> None:
    """Check every known field but `version`, and `timestamp` when `timed`; unknown ones are not looked at (ENV-4).

    Raises Rejected `protocol.malformed` for the first breach, with details.path and details.problem.
    """
    get = fields.get
    message_id, trace_id = get("message_id", MISSING), get("trace_id", MISSING)
    if not isinstance(message_id, str) or not 0 < len(message_id) <= MAX_ID_CHARS:
        raise malformed("message_id", ID_RULE, message_id)
    if not isinstance(trace_id, str) or not 0 < len(trace_id) <= MAX_ID_CHARS:
        raise malformed("trace_id", ID_RULE, trace_id)
    session_id, workflow_id = get("session_id"), get("workflow_id")
    if session_id is not None and (not isinstance(session_id, str) or not 0 < len(session_id) <= MAX_ID_CHARS):
        raise malformed("session_id", f"null or {ID_RULE}", session_id)
    if workflow_id is not None and (not isinstance(workflow_id, str) or not 0 < len(workflow_id) <= MAX_ID_CHARS):
        raise malformed("workflow_id", f"null or {ID_RULE}", workflow_id)
    few = (get("from", MISSING), get("to", MISSING), get("type", MISSING), get("role"), get("phase"), get("status"))
    try:
        _remembered_few(*few)
    except TypeError:  # an array or object, which no cache can hold
        _check_few(*few)
    if timed and "timestamp" in fields and not timestamps.is_timestamp(fields["timestamp"]):
        raise malformed("timestamp", timestamps.RULE, fields["timestamp"])
    if "extensions" in fields:
        given = fields["extensions"]
        if not isinstance(given, dict):
            raise malformed("extensions", "an object", given)
        if given:
            extensions.check(given)


def _check_few(sender: Any, to: Any, type: Any, role: Any, phase: Any, status: Any) -> None:
    """Check the fields that have few values in the life of a bus, so that their check is remembered."""
    if not is_agent_name(sender):
        raise malformed("from", AGENT_NAME_RULE, sender)
    if to != "*" and not is_agent_name(to):
        raise malformed("to", f"* or {AGENT_NAME_RULE}", to)
    if not is_type_name(type):
        raise malformed("type", TYPE_NAME_RULE, type)
    if role is not None and role not in ROLES:
        raise malformed("role", f"null or one of {', '.join(ROLES)}", role)
    if phase is not None and not (isinstance(phase, str) and 0 < len(phase) <= MAX_PHASE_CHARS):
        raise malformed("phase", f"null or a string of 1 to {MAX_PHASE_CHARS} characters", phase)
    if status is not None and status not in STATUSES:
        raise malformed("status", f"null or one of {', '.join(STATUSES)}", status)


# Only what passes is remembered (a refusal raises), so no entry is longer than the rules allow.
_remembered_few = lru_cache(maxsize=4096)(_check_few)


def _undecodable(problem: orjson.JSONDecodeError, max_depth: int) -> Rejected:
    reason = str(problem)
    if reason.startswith("depth limit"):
        return _too_deep("$", max_depth)
    return Rejected(
        "protocol.malformed",
        f"the message is not JSON in UTF-8: {reason}",
        path="$",
        problem="must be a JSON object in UTF-8",
        not_json=True,
    )


def _unwritable(path: str, reason: str) -> Rejected:
    return Rejected(
        "protocol.malformed",
        f"`{path}` cannot be written as JSON: {reason}; pass JSON values only",
        path=path,
        problem=reason,
    )


def _too_deep(path: str, max_depth: int) -> Rejected:
    return Rejected(
        "protocol.malformed",
        f"`{path}` makes the message deeper than {max_depth} levels; flatten it or send it by reference",
        path=path,
        problem=f"must be nested at most {max_depth} levels deep",
        limit=max_depth,
    )


def _is_deeper(value: Any, limit: int) -> bool:
    """Whether containers are nested more than `limit` levels, `value` itself being the first."""
    level = [value]
    for _ in range(limit):
        level = [
            inner
            for container in level
            for inner in (container.values() if type(container) is dict else container)
            if type(inner) in _CONTAINERS
        ]
        if not level:
            return False
    return True


def _deepest(fields: dict[str, Any], limit: int) -> str:
    """The top-level field in which the limit is passed."""
    for name, value in fields.items():
        if type(value) in _CONTAINERS and _is_deeper(value, limit - 1):
            return name[:MAX_NAME_CHARS]
    return "$"


def _has_odd_float(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_odd_float, value.values()))
    return isinstance(value, _SEQUENCES) and any(map(_has_odd_float, value))
