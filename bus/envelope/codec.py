"""Bytes to fields, and the check of the fields: what envelope 1.2 says of each (ENV-1, ENV-2, SEC-7).

The check is written by hand because it runs for every message; a property test holds it equal to
`schemas/envelope/1.2.json`.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

import orjson

from bus.envelope import extensions, timestamps
from bus.envelope.grammar import (
    AGENT_NAME_RULE,
    ID_RULE,
    MAX_ID_CHARS,
    MAX_NAME_CHARS,
    TYPE_NAME_RULE,
    malformed,
    matches_agent_name,
    matches_type_name,
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

_PHASE_RULE: Final = "null or a string of 1 to 64 characters"
_COUNTED_BYTES: Final = 4096


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
    # Counting brackets is quicker than walking a small message, and slower than walking a long text.
    if len(data) >= _COUNTED_BYTES or data.count(b"{") + data.count(b"[") > max_depth:
        _check_depth(fields, max_depth)
    return fields


def render(fields: dict[str, Any]) -> bytes:
    """Write fields as UTF-8 JSON that `parse` reads back as the same values.

    Raises Rejected `protocol.malformed` with details.path for what JSON cannot say (NaN, infinity, integers
    beyond 64 bits, lone surrogates, objects of Python) and for more than 64 levels.
    """
    try:
        data = orjson.dumps(fields)
    except TypeError as problem:
        raise _unwritable("$", str(problem)) from None
    # orjson writes NaN and infinity as null: more nulls than the top level has ask for a closer look.
    if (
        len(data) >= _COUNTED_BYTES
        or data.count(b"{") + data.count(b"[") > MAX_DEPTH
        or data.count(b"null") > list(fields.values()).count(None)
    ):
        _check_depth(fields, MAX_DEPTH)
        for name, value in fields.items():
            if not _is_finite(value):
                raise _unwritable(name, "NaN and infinity are not JSON numbers")
    return data


def check_fields(fields: Mapping[str, Any]) -> None:
    """Check every known field but `version`; unknown ones are not looked at (ENV-4).

    Raises Rejected `protocol.malformed` for the first breach, with details.path and details.problem.
    """
    get = fields.get
    for name in ("message_id", "trace_id"):
        value = get(name)
        if not isinstance(value, str) or not 1 <= len(value) <= MAX_ID_CHARS:
            raise malformed(name, ID_RULE, value, missing=name not in fields)
    for name in ("session_id", "workflow_id"):
        value = get(name)
        if value is not None and (not isinstance(value, str) or not 1 <= len(value) <= MAX_ID_CHARS):
            raise malformed(name, f"null or {ID_RULE}", value)
    value = get("from")
    if not isinstance(value, str) or len(value) > MAX_NAME_CHARS or not matches_agent_name(value):
        raise malformed("from", AGENT_NAME_RULE, value, missing="from" not in fields)
    value = get("to")
    if value != "*" and (
        not isinstance(value, str) or len(value) > MAX_NAME_CHARS or not matches_agent_name(value)
    ):
        raise malformed("to", f"* or {AGENT_NAME_RULE}", value, missing="to" not in fields)
    value = get("role")
    if value is not None and value not in ROLES:
        raise malformed("role", f"null or one of {', '.join(ROLES)}", value)
    value = get("type")
    if not isinstance(value, str) or len(value) > MAX_NAME_CHARS or not matches_type_name(value):
        raise malformed("type", TYPE_NAME_RULE, value, missing="type" not in fields)
    value = get("phase")
    if value is not None and (not isinstance(value, str) or not 1 <= len(value) <= MAX_PHASE_CHARS):
        raise malformed("phase", _PHASE_RULE, value)
    value = get("status")
    if value is not None and value not in STATUSES:
        raise malformed("status", f"null or one of {', '.join(STATUSES)}", value)
    value = get("timestamp")
    if (value is not None or "timestamp" in fields) and not timestamps.is_timestamp(value):
        raise malformed("timestamp", timestamps.RULE, value)
    value = get("extensions")
    if value:
        if not isinstance(value, dict):
            raise malformed("extensions", "an object", value)
        extensions.check(value)
    elif value != {} and "extensions" in fields:
        raise malformed("extensions", "an object", value)


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


def _check_depth(fields: dict[str, Any], limit: int) -> None:
    if _is_deeper([fields], limit):
        containers = (
            (name, value) for name, value in fields.items() if isinstance(value, dict | list | tuple)
        )
        name = next(name for name, value in containers if _is_deeper([value], limit - 1))
        raise _too_deep(name[:MAX_NAME_CHARS], limit)


def _is_deeper(level: list[Any], limit: int) -> bool:
    """Whether containers are nested more than `limit` levels, those in `level` being the first."""
    for _ in range(limit):
        deeper: list[Any] = []
        for container in level:
            for inner in container.values() if isinstance(container, dict) else container:
                if isinstance(inner, dict | list | tuple):
                    deeper.append(inner)
        if not deeper:
            return False
        level = deeper
    return True


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return all(map(_is_finite, value)) if isinstance(value, list | tuple) else True
