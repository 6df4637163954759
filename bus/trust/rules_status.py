"""Which rules are in force, told across processes: every agent answers a question on a core subject.

Replicas read files of their own, and an edit may have reached only some of them, or be refused by them.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import orjson

from bus.broker.connection import Connection
from bus.broker.questions import ask_all

ANSWER_S = 0.5


@dataclass(frozen=True, slots=True)
class RulesStatus:
    """The rules of one process. `digest` is the SHA-256 of their file, empty without rules; `problem` of the last edit.

    `instance` tells the replicas of a service apart.
    """

    service: str
    instance: str
    digest: str
    problem: str

    def encode(self) -> bytes:
        """The bytes of an answer."""
        return orjson.dumps(self)


async def rules_statuses(connection: Connection, *, within_s: float = ANSWER_S) -> list[RulesStatus]:
    """The rules of everybody who runs now, by name, as far as they answer in time. Raises BrokerError."""
    answers: list[bytes] = []

    def take(answer: bytes) -> bool:
        # With nobody there the server answers itself, with nothing.
        answers.append(answer)
        return not answer

    await ask_all(connection, [connection.subjects.rules_status], b"", take, timeout_s=within_s)
    found = []
    for answer in answers:
        # Anybody may answer, so what cannot be read is nobody's.
        with contextlib.suppress(KeyError, TypeError, ValueError):
            told = orjson.loads(answer)
            found.append(RulesStatus(*(str(told[name])[:500] for name in ("service", "instance", "digest", "problem"))))
    return sorted(found, key=lambda one: (one.service, one.instance))
