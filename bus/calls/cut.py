"""Cutting: a result that is too long for its reader, shortened, with a reference to all of it (TOOL-6)."""

from __future__ import annotations

from typing import Any

import orjson

from bus.workflow.artifacts import Artifacts

MARK = "… [cut]"
MIN_CHARS = 16


async def cut(data: Any, limit_bytes: int, artifacts: Artifacts) -> tuple[Any, dict[str, Any] | None]:
    """The data, or when it has more than `limit_bytes` as JSON a shorter version and the artifact that holds it all.

    Raises BrokerError when the artifact cannot be stored.
    """
    content = orjson.dumps(data)
    if len(content) <= limit_bytes:
        return data, None
    stored = await artifacts.put(content, name="result", media_type="application/json")
    return shortened(data, limit_bytes), {"sha256": stored.sha256, "size_bytes": stored.size_bytes}


def shortened(data: Any, limit_bytes: int) -> Any:
    """The data with long texts and lists cut until it has at most `limit_bytes` as JSON; null when nothing fits.

    Its outer shape stays as long as that is possible; a cut text ends with a mark.
    """
    items, chars = limit_bytes, limit_bytes
    while chars >= MIN_CHARS:
        short = _shorter(data, items, chars)
        if len(orjson.dumps(short)) <= limit_bytes:
            return short
        items, chars = max(1, items // 2), chars // 2
    return None


def _shorter(value: Any, items: int, chars: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= chars else value[: max(0, chars - len(MARK))] + MARK
    if isinstance(value, list):
        return [_shorter(one, items, chars) for one in value[:items]]
    if isinstance(value, dict):
        return {name: _shorter(one, items, chars) for name, one in value.items()}
    return value
