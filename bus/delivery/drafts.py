"""Drafts: messages to be sent together, and the extensions of a message as Python writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel

from bus.contracts.version import version_of

_TIMES = ("deliver_at", "expires_at")


@dataclass(frozen=True, slots=True)
class Draft:
    """One message for `send_many`; the fields mean what they mean for `send`. `key` counts for handlers only."""

    to: str
    type: str
    payload: Any = None
    phase: str | None = None
    role: str | None = None
    status: str | None = None
    key: str | None = None
    message_id: str | None = None
    extensions: Mapping[str, Any] | None = None
    delay_s: float | None = None


def written(
    extensions: Mapping[str, Any] | None, delay_s: float | None, type: str = "", payload: Any = None
) -> Mapping[str, Any] | None:
    """Extensions as they travel: datetimes become RFC 3339, `delay_s` becomes `deliver_at`.

    A payload whose model is a contract of this type gives `schema`, unless it is given. A datetime needs a zone; the
    envelope refuses one without. ValueError for a `delay_s` beside a `deliver_at`.
    """
    version = version_of(payload.__class__) if isinstance(payload, BaseModel) else None
    if extensions is None and delay_s is None and version is None:
        return None
    result = dict(extensions or {})
    if version is not None and version.type == type:
        result.setdefault("schema", str(version))
    if delay_s is not None:
        if "deliver_at" in result:
            raise ValueError("give delay_s or deliver_at, not both")
        result["deliver_at"] = datetime.now(UTC) + timedelta(seconds=delay_s)
    for name in _TIMES:
        if isinstance(moment := result.get(name), datetime):
            result[name] = moment.isoformat()
    return result
