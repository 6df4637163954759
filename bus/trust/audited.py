"""Reading the audit: the records of calls that fit some filters, in the order in which they were stored (SEC-6)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import orjson

from bus.broker.connection import Connection
from bus.broker.pull import Delivery
from bus.broker.reader import StreamReader
from bus.broker.streams import StreamNames
from bus.trust.call_record import DENIED, CallRecord
from bus.trust.rules import fits


@dataclass(frozen=True, slots=True)
class Wanted:
    """Filters; None fits everything. `capability` may be a family such as `calculator.*`, `outcome` is `ok` or a code.

    `is_denied`: only what the rules refused. `since` counts the end of the call.
    """

    agent: str | None = None
    sender: str | None = None
    capability: str | None = None
    outcome: str | None = None
    workflow_id: str | None = None
    since: datetime | None = None
    is_denied: bool = False

    def fits(self, record: CallRecord) -> bool:
        """Whether a record is one of these."""
        return (
            self.agent in (None, record.agent)
            and self.sender in (None, record.sender)
            and (self.capability is None or fits(self.capability, record.capability))
            and self.outcome in (None, record.outcome)
            and self.workflow_id in (None, record.workflow_id)
            and (self.since is None or record.ended_at >= self.since)
            and (not self.is_denied or record.outcome == DENIED)
        )


class Found(NamedTuple):
    """What one stored message says: its records that fit, and how many others its writer had dropped before."""

    writer: str
    records: list[CallRecord]
    dropped: int
    unread: int


async def audited(connection: Connection, wanted: Wanted, *, follow: bool = False) -> AsyncIterator[Found | None]:
    """What is stored, then None, then with `follow` what comes, for ever. Raises BrokerError.

    A record whose writer is neither its caller nor its callee, and what cannot be read, counts as `unread`.
    """
    stream = StreamNames.of(connection.settings.namespace).audit
    # A group is stored after the calls in it, so that nothing of later calls stands before this moment.
    start = wanted.since or datetime.fromtimestamp(0, UTC)
    async with StreamReader(connection, stream, start_time=start) as reader:
        async for delivery in reader.until_now():
            yield _found(delivery, wanted)
        yield None
        while follow:
            yield _found(await reader.next(), wanted)


def _found(delivery: Delivery, wanted: Wanted) -> Found:
    writer = delivery.subject.rpartition(".")[2]
    unread = 0
    records = []
    try:
        body = orjson.loads(delivery.data)
        calls, dropped = body["calls"], body.get("dropped", 0)
        if not isinstance(calls, list) or type(dropped) is not int:
            raise TypeError
    except (ValueError, TypeError, KeyError):
        return Found(writer, [], 0, 1)
    for record in _read(calls):
        if record is None or writer not in (record.sender, record.agent):
            unread += 1
        elif wanted.fits(record):
            records.append(record)
    return Found(writer, records, dropped, unread)


def _read(calls: list[object]) -> Iterator[CallRecord | None]:
    for one in calls:
        try:
            yield CallRecord.from_wire(one)
        except ValueError:
            yield None
