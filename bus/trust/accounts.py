"""Accounts: what the branches of a chain have used up together, counted by compare-and-set over all replicas (WF-6).

One document for each account, `<workflow>.budget.<account>` in the bucket of workflows. It is made by whoever spends
first, from the limits that the chain's envelopes carry.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from bus.broker.connection import Connection
from bus.broker.records import Records
from bus.broker.streams import StreamNames
from bus.broker.subjects import token
from bus.envelope import Envelope
from bus.errors import BusError, error
from bus.trust.budget import UNITS, Account, account_of

NO_WORKFLOW = "-"
MAX_CONFLICTS = 200
MAX_KEPT = 1024

Costs = Mapping[str, int]


@dataclass(slots=True)
class _Kept:
    """An account as it was last seen, and the turn of those who write it from here."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    revision: int = 0
    limits: dict[str, int] = field(default_factory=dict)
    spent: dict[str, int] = field(default_factory=dict)


class Accounts:
    """The accounts of a bus. A cost counts once it is stored, so that no two replicas spend the same unit."""

    __slots__ = ("_kept", "_records")

    def __init__(self, connection: Connection) -> None:
        self._records = Records(connection, StreamNames.of(connection.settings.namespace).workflows)
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    async def spend(self, cause: Envelope, *, calls: int = 0, messages: int = 0, tokens: int = 0) -> None:
        """Debits what `cause` makes the chain use, in its account and in those above it.

        Calls and messages are paid before they happen, so the limit holds exactly; tokens are told after they are
        used, so the last report may pass it, and counts. Nothing is counted for a message without such a budget.
        Raises Rejected `protocol.budget_exhausted` with `details.unit`, `limit` and `spent`, and BrokerError. A handler
        that runs again pays again.
        """
        account = account_of(cause)
        if account is not None:
            await self.pay(account, cause.workflow_id, calls=calls, messages=messages, tokens=tokens)

    async def pay(
        self, account: Account, workflow_id: str | None, *, calls: int = 0, messages: int = 0, tokens: int = 0
    ) -> None:
        """As `spend`, from an account that is known."""
        costs = {"calls": calls, "messages": messages, "tokens": tokens}
        where = token(workflow_id) if workflow_id is not None else NO_WORKFLOW
        await self._debit(where, account.name, costs, account.limits)
        for name in account.within:
            await self._debit(where, name, costs, None)

    async def _debit(self, where: str, name: str, costs: Costs, limits: Mapping[str, int] | None) -> None:
        key = f"{where}.budget.{token(name)}"
        kept = self._keep(key)
        async with kept.turn:
            for conflicts in range(MAX_CONFLICTS):
                if not kept.revision:
                    await self._read(key, kept, limits)
                # What is spent only grows, so what was seen may be old and still refuses rightly.
                used_up = _used_up(key, kept, costs)
                if used_up is not None and not costs["tokens"]:
                    raise used_up
                spent = {unit: kept.spent.get(unit, 0) + costs[unit] for unit in UNITS}
                value = orjson.dumps({"limits": kept.limits, "spent": spent})
                try:
                    revision = await self._records.write(key, value, after=kept.revision)
                except BusError:
                    kept.revision = 0  # It may have been written.
                    raise
                if revision:
                    kept.revision, kept.spent = revision, spent
                    if used_up is not None:
                        raise used_up
                    return
                kept.revision = 0
                await asyncio.sleep(random.uniform(0, min(0.2, 0.002 * 2 ** min(conflicts, 7))))
        raise error("broker.unavailable", f"{key} was changed by others {MAX_CONFLICTS} times in a row")

    async def _read(self, key: str, kept: _Kept, limits: Mapping[str, int] | None) -> None:
        record = await self._records.read(key)
        if record.value is not None:
            found: dict[str, Any] = orjson.loads(record.value)
            kept.revision, kept.limits, kept.spent = record.revision, found["limits"], found["spent"]
        elif limits is not None:
            kept.revision, kept.limits, kept.spent = 0, dict(limits), {}
        else:
            raise error(
                "protocol.budget_exhausted", f"the budget {key} that this one is a share of is gone", account=key
            )

    def _keep(self, key: str) -> _Kept:
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = _Kept()
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(key)
        return kept


def _used_up(key: str, kept: _Kept, costs: Costs) -> BusError | None:
    for unit, limit in kept.limits.items():
        spent, cost = kept.spent.get(unit, 0), costs.get(unit, 0)
        if spent + cost > limit or (unit == "tokens" and spent >= limit):
            return error(
                "protocol.budget_exhausted",
                f"the chain may use {limit} {unit}, {spent} are used up"
                + (f" and {cost} more are asked for" if cost else ""),
                unit=unit,
                limit=limit,
                spent=spent,
                account=key,
            )
    return None
