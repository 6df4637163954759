"""What a model is told about a call: one text, never longer than it may be (TOOL-2, TOOL-3, TOOL-6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from bus.calls.cut import MARK, shortened
from bus.contracts.result import Result
from bus.errors import ErrorInfo

MIN_BYTES = 256

# What of an error's details helps a model, the most important first; the rest is for programs.
_TOLD = ("instruction", "errors", "repairs_left", "nearest", "retry_after_ms", "confirmation_id", "schema")


def answer_text(result: Result, max_bytes: int) -> str:
    """A result as a text for a model, at most `max_bytes` of UTF-8: data that is text as it is, else JSON.

    Data that was cut says so, with the digest of the artifact that holds all of it.
    """
    limit = max(max_bytes, MIN_BYTES)
    if result.error is not None:
        return _error_text(result.error, limit)
    whole = result.meta.get("whole")
    if not isinstance(whole, Mapping):
        text = result.data if isinstance(result.data, str) else _json(result.data)
        if _size(text) <= limit:
            return text
    reference = {"cut": True, "whole": whole if isinstance(whole, Mapping) else None}
    room = limit - _size(_json({**reference, "data": None}))
    return _json({**reference, "data": shortened(result.data, max(room, 1))})


def _error_text(info: ErrorInfo, limit: int) -> str:
    told: dict[str, Any] = {
        "code": info.code,
        "message": info.message,
        "advice": info.advice.value,
        **{name: info.details[name] for name in _TOLD if name in info.details},
    }
    for name in ("schema", "errors", "nearest", "instruction", "confirmation_id"):
        if _size(_json({"error": told})) <= limit:
            break
        told.pop(name, None)
    room = limit - _size(_json({"error": {**told, "message": ""}}))
    if _size(_json(told["message"])) - 2 > room:
        told["message"] = shortened(told["message"], max(room, 0) + 2) or MARK
    return _json({"error": told})


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
