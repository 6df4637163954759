"""The guard of one process: the rules in force, and the witness who writes down what became of calls (SEC-2, SEC-6)."""

from __future__ import annotations

import asyncio
from typing import Self

from bus.broker.connection import Connection
from bus.broker.questions import Answering
from bus.broker.tasks import end
from bus.calls.witness import Witness
from bus.trust.audit import Audit
from bus.trust.rule_book import RuleBook
from bus.trust.rules_status import RulesStatus


class Guard:
    """Stands beside all calls of one agent or client, from `start` to `close`, or for the body of an `async with`.

    `rules` is None where none are set, and everything is allowed. Raises SettingsError for a rules file that
    cannot be used.
    """

    def __init__(self, connection: Connection, name: str, *, instance: str) -> None:
        settings = connection.settings
        self.rules = RuleBook.opened(settings)
        self.audit = Audit(connection, name) if settings.audit else None
        self.witness = Witness(self.audit, name)
        self._connection = connection
        self._watching: asyncio.Task[None] | None = None

        def status(_: bytes) -> bytes:
            book = self.rules
            return RulesStatus(name, instance, book.digest if book else "", book.problem if book else "").encode()

        self._answering = Answering(connection, {connection.subjects.rules_status: status}, name=f"rules of {name}")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self, *, is_agent: bool = False) -> None:
        """Follows the rules file, and tells which rules are in force; an agent also when it has none.

        Raises BrokerError.
        """
        if self.rules is not None:
            self._watching = self._connection.tasks.start(self.rules.watch(), name=f"watch {self.rules.path}")
        if is_agent or self.rules is not None:
            await self._answering.start()

    async def close(self) -> None:
        """Stores the records that wait, within 2 s, and stops; a second call does nothing."""
        await self._answering.stop()
        await end(self._watching)
        if self.audit is not None:
            await self.audit.close()
