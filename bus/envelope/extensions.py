"""The registered extensions: their types, their checks, and their part of the JSON Schema (ENV-5).

Every entry is optional. A registered name with a wrong value is refused by name; every other name passes
untouched. The check and the schema fragment of an entry are made from the same numbers.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from bus.envelope import grammar, timestamps

MAX_COUNT: Final = 2**53 - 1  # the largest whole number that every JSON reader keeps exact
MAX_CHAIN: Final = 1024
MAX_LABELS: Final = 64
MAX_LABEL_CHARS: Final = 64
CONTRACT: Final = r"^[a-z][a-z0-9_]{0,63}@(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})$"

Problem = tuple[str, str]
"""Where below the extension, and the rule that was broken."""


@dataclass(frozen=True, slots=True)
class Registered:
    """One registered extension: `check` returns the problem of a value or None; `schema` describes it."""

    check: Callable[[Any], Problem | None]
    schema: Mapping[str, Any]


def check(extensions: Mapping[str, Any]) -> None:
    """Refuse a wrong value under a registered name: Rejected `protocol.malformed`, details.path names it."""
    for name, value in extensions.items():
        if name in _CHECKS:
            problem = _CHECKS[name](value)
            if problem is not None:
                where, rule = problem
                raise grammar.malformed(f"extensions.{name}{where}", rule, _at(value, where))


def _at(value: Any, where: str) -> Any:
    if where.startswith("["):
        return value[int(where[1:-1])]
    return value[where[1:]] if where else value


def _text(limit: int, description: str) -> Registered:
    rule = f"a string of 1 to {limit} characters"

    def check_text(value: Any) -> Problem | None:
        return None if isinstance(value, str) and 0 < len(value) <= limit else ("", rule)

    schema = {"description": description, "type": "string", "minLength": 1, "maxLength": limit}
    return Registered(check_text, schema)


def _time(description: str) -> Registered:
    def check_time(value: Any) -> Problem | None:
        return None if timestamps.is_timestamp(value) else ("", timestamps.RULE)

    return Registered(check_time, {"description": description, **timestamps.SCHEMA})


def _count(description: str) -> Registered:
    rule = f"a whole number from 0 to {MAX_COUNT}"

    def check_count(value: Any) -> Problem | None:
        # As JSON Schema has it: 2.0 is a whole number, true is not a number.
        whole = type(value) is int or (type(value) is float and value.is_integer())
        return None if whole and 0 <= value <= MAX_COUNT else ("", rule)

    return Registered(check_count, {"description": description, "type": "integer", "minimum": 0, "maximum": MAX_COUNT})


def _one_of(words: tuple[str, ...], description: str) -> Registered:
    rule = f"one of {', '.join(words)}"

    def check_word(value: Any) -> Problem | None:
        return None if isinstance(value, str) and value in words else ("", rule)

    return Registered(check_word, {"description": description, "enum": list(words)})


def _flag(description: str) -> Registered:
    def check_flag(value: Any) -> Problem | None:
        return None if isinstance(value, bool) else ("", "true or false")

    return Registered(check_flag, {"description": description, "type": "boolean"})


def _contract(description: str) -> Registered:
    rule = "a contract such as draft_request@2.1: message type, @, major, dot, minor"
    fullmatch = re.compile(CONTRACT[1:-1]).fullmatch

    def check_contract(value: Any) -> Problem | None:
        return None if isinstance(value, str) and fullmatch(value) else ("", rule)

    return Registered(check_contract, {"description": description, "type": "string", "pattern": CONTRACT})


def _array(limit: int, item: Registered, items: str, description: str) -> Registered:
    rule = f"an array of at most {limit} {items}"

    def check_array(value: Any) -> Problem | None:
        if not isinstance(value, list) or len(value) > limit:
            return "", rule
        for index, member in enumerate(value):
            problem = item.check(member)
            if problem is not None:
                return f"[{index}]", problem[1]
        return None

    schema = {"description": description, "type": "array", "maxItems": limit, "items": dict(item.schema)}
    return Registered(check_array, schema)


def _object(members: dict[str, Registered], description: str) -> Registered:
    def check_object(value: Any) -> Problem | None:
        if not isinstance(value, dict):
            return "", "an object"
        for name, given in value.items():
            if name in members and (problem := members[name].check(given)) is not None:
                return f".{name}", problem[1]
        return None

    properties = {name: dict(member.schema) for name, member in members.items()}
    return Registered(check_object, {"description": description, "type": "object", "properties": properties})


def _agent_name(description: str) -> Registered:
    def check_agent_name(value: Any) -> Problem | None:
        return None if grammar.is_agent_name(value) else ("", grammar.AGENT_NAME_RULE)

    schema = {"description": description, "type": "string", "pattern": grammar.AGENT_NAME}
    return Registered(check_agent_name, schema)


def _agent_names(description: str) -> Registered:
    thorough = _array(MAX_CHAIN, _agent_name("An agent's name."), "agent names", description)

    def check_agent_names(value: Any) -> Problem | None:
        try:
            _remembered_names(tuple(value))
        except (TypeError, ValueError):
            return thorough.check(value)
        return None if isinstance(value, list) else thorough.check(value)

    return Registered(check_agent_names, thorough.schema)


@lru_cache(maxsize=1024)
def _remembered_names(names: tuple[Any, ...]) -> None:
    # Only what passes is remembered, hence the raise: a refused entry could be of any length.
    if len(names) > MAX_CHAIN or not all(map(grammar.is_agent_name, names)):
        raise ValueError("not all agent names")


REGISTERED: Final[Mapping[str, Registered]] = MappingProxyType(
    {
        "causation_id": _text(grammar.MAX_ID_CHARS, "The message_id of the message that caused this one."),
        "correlation_id": _text(grammar.MAX_ID_CHARS, "The message_id or call that this one answers."),
        "reply_to": _agent_name("The agent that gets the answer, when it is not the sender."),
        "expires_at": _time("After this moment nobody should handle the message."),
        "deliver_at": _time("Before this moment nobody should handle the message."),
        "schema": _contract("The payload's contract and its version: type@major.minor."),
        "idempotency_key": _text(256, "The same key asks for the same work: it is done once."),
        "partition_key": _text(256, "Messages with the same key are handled in the order of sending."),
        "priority": _one_of(("low", "normal", "high"), "How urgent the message is; absent is normal."),
        "data_ref": _text(1024, "Where the payload is stored, when it is too large to travel inline."),
        "hops": _count("How many messages led to this one in a row; absent is 0."),
        "path": _agent_names("The agents that the chain passed, oldest first."),
        "budget": _object(
            {
                "deadline_at": _time("The moment at which the whole chain must be done."),
                "hops": _count("How many messages may follow each other in a row."),
                "calls": _count("How many calls the chain may make, in all its branches together."),
                "messages": _count("How many messages the chain may send, in all its branches together."),
                "tokens": _count("How many model tokens the chain may use, in all its branches together."),
                "account": _text(64, "Where its use is counted; absent: in an account of this message's own."),
                "within": _array(16, _text(64, "An account."), "accounts", "The accounts that this one is a share of."),
            },
            "What the chain may use up. Other members pass untouched.",
        ),
        "branch": _count("The branch of the workflow that the message belongs to; absent is 0."),
        "labels": _array(
            MAX_LABELS,
            _text(MAX_LABEL_CHARS, "A label."),
            "labels",
            "Where the content comes from, for the trust rules: external.",
        ),
        "on_behalf_of": _agent_names("For whom the sender acts: a chain of agents, the first asker first."),
        "recorded": _flag("Whether the calls of the chain are kept for a replay; absent is no."),
        "signature": _text(8192, "The sender's signature, as the trust rules define it."),
    }
)
"""Every registered extension by its name."""

_CHECKS: Final = {name: registered.check for name, registered in REGISTERED.items()}
