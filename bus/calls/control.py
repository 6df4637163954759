"""The control line: what a caller says about a call that is in hand, and how it learns that nobody has it any more.

Every replica listens on a subject of its own, so the broker itself says that a replica is gone: nobody listens there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, NamedTuple

import orjson

from bus.broker.connection import Connection
from bus.errors import BusError

ALL = "all"
ASK_S = 1.0


class Verb(StrEnum):
    """What can be said: `alive` asks whether the call is in hand, `cancel` ends it.

    `credit` is as `alive`, and says how far the reader of its stream has come.
    """

    ALIVE = "alive"
    CANCEL = "cancel"
    CREDIT = "credit"


class Word(NamedTuple):
    """What is said about one call; `read` is the number of the last chunk that its reader has taken."""

    verb: Verb
    tool_call_id: str
    read: int = 0

    def encode(self) -> bytes:
        """The message."""
        said: dict[str, Any] = {"verb": self.verb.value, "tool_call_id": self.tool_call_id}
        return orjson.dumps(said | {"read": self.read} if self.verb is Verb.CREDIT else said)

    @classmethod
    def decode(cls, data: bytes) -> Word | None:
        """Reads a message; None for anything else."""
        try:
            said = orjson.loads(data)
            return cls(Verb(said["verb"]), str(said["tool_call_id"]), int(said.get("read", 0)))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return None


class Presence(StrEnum):
    """What a replica's silence or answer means."""

    HAS_IT = "has it"
    HAS_NOT = "has it not"
    GONE = "gone"
    SILENT = "silent"


async def is_lost(
    connection: Connection, agent: str, instances: Iterable[str], *, sender: str, tool_call_id: str
) -> bool:
    """Whether a replica of the agent is gone and none of the others has the call.

    A replica that does not answer may be busy, so it is never taken for gone.
    """
    found = await asyncio.gather(
        *(presence(connection, agent, one, Word(Verb.ALIVE, tool_call_id), sender=sender) for one in instances)
    )
    return Presence.GONE in found and not {Presence.HAS_IT, Presence.SILENT} & set(found)


async def presence(connection: Connection, agent: str, instance: str, word: Word, *, sender: str) -> Presence:
    """What one replica answers to a word about one call, within a second."""
    subject = connection.subjects.control(agent, instance, sender)
    try:
        answer = await connection.request(subject, word.encode(), timeout_s=ASK_S)
    except BusError as problem:
        return Presence.GONE if problem.info.details.get("reason") == "no_responders" else Presence.SILENT
    return Presence.HAS_IT if answer.data == b"yes" else Presence.HAS_NOT
