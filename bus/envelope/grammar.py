"""The small languages of the envelope's fields: agent names, message types, ids, and how a breach is told."""

import re
from typing import Any, Final

from bus.errors import Rejected

MAX_ID_CHARS: Final = 128
MAX_NAME_CHARS: Final = 64
AGENT_NAME: Final = "^[A-Za-z0-9_-]{1,64}$"
TYPE_NAME: Final = "^[a-z][a-z0-9_]{0,63}$"

ID_RULE: Final = "a string of 1 to 128 characters"
AGENT_NAME_RULE: Final = "an agent name: 1 to 64 letters, digits, _ or -"
TYPE_NAME_RULE: Final = "a message type: a lower-case letter, then up to 63 lower-case letters, digits or _"

MISSING: Final = object()
"""Stands for the value of a field that is not there."""

_SHOWN_CHARS: Final = 40
_AGENT_NAME: Final = re.compile(AGENT_NAME[1:-1])
_TYPE_NAME: Final = re.compile(TYPE_NAME[1:-1])


def is_agent_name(value: object) -> bool:
    """Whether the value, of any type, is an agent name."""
    return isinstance(value, str) and _AGENT_NAME.fullmatch(value) is not None


def is_type_name(value: object) -> bool:
    """Whether the value, of any type, is a message type."""
    return isinstance(value, str) and _TYPE_NAME.fullmatch(value) is not None


def malformed(path: str, rule: str, value: Any, **details: Any) -> Rejected:
    """Make the refusal of one field: `protocol.malformed` with `details.path` and `details.problem`.

    `path` is dotted from the envelope's top (`from`, `extensions.budget.calls`), or `$` for the message as a
    whole. Of the value (`MISSING` where there is none) only its JSON type is told, and a short
    string's text.
    """
    message = f"`{path}` must be {rule}; it is {_shown(value)}"
    return Rejected("protocol.malformed", message, path=path, problem=f"must be {rule}", **details)


def _shown(value: Any) -> str:
    if value is MISSING:
        return "missing"
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
