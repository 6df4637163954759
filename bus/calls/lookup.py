"""The lookup of a call: who may be asked, as far as its caller may see them (REG-3, SEC-2)."""

from __future__ import annotations

from bus.calls.directory import Directory
from bus.calls.draft import CallDraft
from bus.calls.guard import Guard
from bus.calls.index import Offer
from bus.calls.selection import suitable
from bus.calls.sight import Seen, Sight
from bus.envelope import Envelope
from bus.errors import BusError
from bus.trust.delegation import chain_of


class Lookup:
    """Looks capabilities up for one caller."""

    __slots__ = ("_directory", "_name", "_rules", "_timeout_s", "_witness")

    def __init__(self, directory: Directory, name: str, guard: Guard, *, timeout_s: float) -> None:
        self._directory = directory
        self._name = name
        self._rules = guard.rules
        self._witness = guard.witness
        self._timeout_s = timeout_s

    async def offers(self, draft: CallDraft, cause: Envelope | None) -> list[Offer]:
        """Who may be asked. Raises RegistryError and BrokerError."""
        if not self._directory.is_ready:
            await self._directory.ready(draft.timeout_s or self._timeout_s)
        found = suitable(self._seen(cause), draft)
        if isinstance(found, BusError):
            # Who has just registered may not be in the index yet.
            await self._directory.settle()
            found = suitable(self._seen(cause), draft)
            if isinstance(found, BusError):
                raise found
        return found

    async def registered(self, draft: CallDraft) -> list[Offer]:
        """Who offers it now, whoever may ask them. Raises as `offers`."""
        if not self._directory.is_ready:
            await self._directory.ready(draft.timeout_s or self._timeout_s)
        await self._directory.settle()
        found = suitable(self._directory.index, draft)
        if isinstance(found, BusError):
            raise found
        return found

    def refused(self, draft: CallDraft, call_id: str, problem: BusError, cause: Envelope | None) -> None:
        """Writes down a call that ended before anybody was asked."""
        self._witness.unsent(draft, call_id, problem, cause=cause, denied=self._denied(draft, cause))

    def _seen(self, cause: Envelope | None) -> Seen:
        index, book = self._directory.index, self._rules
        return index if book is None else Sight(index, book.rules, self._askers(cause))

    def _askers(self, cause: Envelope | None) -> tuple[str, ...]:
        return (self._name,) if cause is None else (self._name, *chain_of(cause))

    def _denied(self, draft: CallDraft, cause: Envelope | None) -> str:
        """Why the rules hide what somebody offers, for the audit alone; empty when they hide nothing."""
        if self._rules is None:
            return ""
        rules, askers = self._rules.rules, self._askers(cause)
        reasons = [
            rules.refusal(askers, draft.capability, offer.agent, sensitive=offer.card.sensitive)
            for offer in self._directory.index.offers(draft.capability)
            if draft.agent in (None, offer.agent)
        ]
        return reasons[0] if reasons and all(reasons) else ""
