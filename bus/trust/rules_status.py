"""Which rules are in force, told across processes: every agent answers a question on a core subject.

Replicas read files of their own, and an edit may have reached only some of them, or be refused by them.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import orjson

from bus.broker.connection import Connection
from bus.broker.polling import Answering, ask_all
from bus.broker.tasks import end
from bus.trust.rule_book import RuleBook

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


@contextlib.asynccontextmanager
async def rules_kept(connection: Connection, book: RuleBook | None, *, instance: str) -> AsyncIterator[None]:
    """Follows the file of the book and answers for it as long as the body runs. Raises BrokerError."""

    def answer() -> bytes:
        digest, problem = ("", "") if book is None else (book.digest, book.problem)
        return orjson.dumps(RulesStatus(connection.name, instance, digest, problem))

    answering = Answering(connection, connection.subjects.rules_status, answer)
    watching = None if book is None else connection.tasks.start(book.watch(), name=f"watch {book.path}")
    try:
        await answering.start()
        yield
    finally:
        await answering.stop()
        await end(watching)


async def rules_statuses(connection: Connection, *, within_s: float = ANSWER_S) -> list[RulesStatus]:
    """The rules of everybody who runs now, by name, as far as they answer in time. Raises BrokerError."""
    found = []
    for answer in await ask_all(connection, connection.subjects.rules_status, within_s=within_s):
        # Anybody may answer, so what cannot be read is nobody's.
        with contextlib.suppress(KeyError, TypeError, ValueError):
            told = orjson.loads(answer)
            found.append(RulesStatus(*(str(told[name])[:500] for name in ("service", "instance", "digest", "problem"))))
    return sorted(found, key=lambda one: (one.service, one.instance))
