"""Times on the wire: RFC 3339 with a zone, as JSON Schema's `date-time` has it."""

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

RULE: Final = "an RFC 3339 time with a zone, such as 2026-01-31T09:30:00Z"
PATTERN: Final = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,32})?([Zz]|[+-][0-9]{2}:[0-9]{2})$"
)
SCHEMA: Final[Mapping[str, Any]] = MappingProxyType({"type": "string", "format": "date-time", "pattern": PATTERN})
"""The JSON Schema of a timestamp."""

# The calendar stands in the pattern: Python's datetime neither holds every year nor knows leap seconds.
_MINUTE: Final = re.compile(
    r"(?:[0-9]{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
    r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
    r"[Tt](?:[01][0-9]|2[0-3]):[0-5][0-9]:"
)
_MINUTE_CHARS: Final = 17
_OURS_CHARS: Final = 27
_REST: Final = re.compile(r"(?:[0-5][0-9]|(60))(?:\.[0-9]{1,32})?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])")
_match_rest: Final = _REST.fullmatch


def is_timestamp(value: object) -> bool:
    """Whether the value is an RFC 3339 time with a zone. A leap second counts only at 23:59:60 UTC."""
    if not isinstance(value, str):
        return False
    if len(value) == _OURS_CHARS and value[19] == "." and value[26] == "Z" and value[20:26].isdecimal():
        # As `now` writes it. Messages of one time share the second, which is remembered.
        return value.isascii() and _is_second(value[:19])
    # Or they share the minute, and the rest is new for each.
    match = _match_rest(value, _MINUTE_CHARS)
    if match is None or not _is_minute(value[:_MINUTE_CHARS]):
        return False
    return match.lastindex is None or _is_last_utc_minute(value)


def now(later_s: float = 0.0) -> str:
    """Return the time of this moment or of a later one, UTC, to the microsecond: `2026-01-31T09:30:00.123456Z`."""
    return at(time.time() + later_s)


def at(moment: float) -> str:
    """Return a Unix time as `now` does."""
    seconds = int(moment)
    # Written so, because a format costs as much as all the rest.
    return f"{_second(seconds)}.{str(1_000_000 + int((moment - seconds) * 1_000_000))[1:]}Z"


def instant(text: str) -> datetime:
    """Return the moment of a valid timestamp as an aware UTC datetime.

    Never fails for what `is_timestamp` accepts: finer than microseconds is cut, a leap second is the second
    after it, and what lies outside Python's years 1 to 9999 becomes the first or last moment of them.
    """
    text = text.upper()
    leap = text[17:19] == "60"
    if leap:
        text = f"{text[:17]}59{text[19:]}"
    try:
        moment = datetime.fromisoformat(text).astimezone(UTC)
        return moment + timedelta(seconds=1) if leap else moment
    except (OverflowError, ValueError):
        return (datetime.max if text.startswith("9999") else datetime.min).replace(tzinfo=UTC)


def epoch_s(text: str) -> float:
    """The moment of a valid timestamp as seconds since 1970, as `instant` reads it."""
    if len(text) == _OURS_CHARS and text[19] == "." and text[26] == "Z":
        # As `now` writes it. Messages of one time share the second, which is remembered.
        return _epoch_second(text[:19]) + int(text[20:26]) / 1_000_000
    return instant(text).timestamp()


def _is_last_utc_minute(text: str) -> bool:
    minutes = int(text[11:13]) * 60 + int(text[14:16])
    if text[-1] not in "Zz":
        offset = int(text[-5:-3]) * 60 + int(text[-2:])
        minutes += offset if text[-6] == "-" else -offset
    return minutes % 1440 == 1439


@lru_cache(maxsize=1024)
def _is_minute(text: str) -> bool:
    return _MINUTE.fullmatch(text) is not None


@lru_cache(maxsize=1024)
def _is_second(text: str) -> bool:
    return text[17:] != "60" and is_timestamp(f"{text}Z")


@lru_cache(maxsize=1024)
def _epoch_second(text: str) -> float:
    return instant(f"{text}Z").timestamp()


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
