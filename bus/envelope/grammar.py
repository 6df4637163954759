"""The small languages of the envelope's fields: agent names, message types, ids, and how a breach is told."""

import re
from functools import lru_cache
from typing import Any, Final

from bus.errors import Rejected

MAX_ID_CHARS: Final = 128
MAX_NAME_CHARS: Final = 64
AGENT_NAME: Final = "^[A-Za-z0-9_-]{1,64}$"
TYPE_NAME: Final = "^[a-z][a-z0-9_]{0,63}$"

ID_RULE: Final = "a string of 1 to 128 characters"
AGENT_NAME_RULE: Final = "an agent name: 1 to 64 letters, digits, _ or -"
TYPE_NAME_RULE: Final = "a message type: a lower-case letter, then up to 63 lower-case letters, digits or _"

_SHOWN_CHARS: Final = 40


@lru_cache(maxsize=4096)
def matches_agent_name(text: str) -> bool:
    """Whether the text is an agent name. Remembered, so callers first bound the text's length."""
    return re.fullmatch(AGENT_NAME[1:-1], text) is not None


@lru_cache(maxsize=4096)
def matches_type_name(text: str) -> bool:
    """Whether the text is a message type. Remembered, so callers first bound the text's length."""
    return re.fullmatch(TYPE_NAME[1:-1], text) is not None


def is_agent_name(value: object) -> bool:
    """Whether the value, of any type, is an agent name."""
    return isinstance(value, str) and len(value) <= MAX_NAME_CHARS and matches_agent_name(value)


def is_type_name(value: object) -> bool:
    """Whether the value, of any type, is a message type."""
    return isinstance(value, str) and len(value) <= MAX_NAME_CHARS and matches_type_name(value)


def malformed(path: str, rule: str, value: Any = None, *, missing: bool = False, **details: Any) -> Rejected:
    """Make the refusal of one field: `protocol.malformed` with `details.path` and `details.problem`.

    `path` is dotted from the envelope's top (`from`, `extensions.budget.calls`), or `$` for the message as a
    whole. Of the value only its JSON type is told, and a short string's text.
    """
    if missing:
        message = f"`{path}` is missing; it must be {rule}"
    else:
        message = f"`{path}` must be {rule}; it is {_shown(value)}"
    return Rejected("protocol.malformed", message, path=path, problem=f"must be {rule}", **details)


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        text = ascii(value[:_SHOWN_CHARS])
        return f"the string {text}" if len(value) <= _SHOWN_CHARS else f"a string of {len(value)} characters"
    if isinstance(value, int | float):
        return f"the number {value!r}"[:_SHOWN_CHARS]
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "an array"
    return f"a Python {type(value).__name__}"
