"""Confirmations: where they are, how one is asked for, answered and used, by compare-and-set (SEC-3)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime

import orjson

from bus.broker.connection import Connection
from bus.broker.parser import Arrival
from bus.broker.records import Records
from bus.broker.stream_names import StreamNames
from bus.broker.subjects import token
from bus.errors import BrokerError, BusError, error
from bus.trust.confirmation import Confirmation, ConfirmationState, Question

VALID_S = 3600.0
MAX_VALID_S = 7 * 86400.0
# How long one is kept after its time, so that people and a second run find it.
KEPT_S = 7 * 86400.0
MAX_CONFLICTS = 50
LOOK_AGAIN_S = 2.0
REQUIRED = "auth.confirmation_required"


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of an answer; `is_ours` is False when somebody had answered before, or it was too late."""

    confirmation: Confirmation
    is_ours: bool


class Confirmations:
    """The confirmations of one bus. Everything raises BrokerError."""

    __slots__ = ("_connection", "_records")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._records = Records(connection, StreamNames.of(connection.settings.namespace).confirmations)

    async def require(self, question: Question, *, attempt: int | None, valid_s: float = VALID_S) -> Confirmation:
        """Returns once, when a person has approved exactly this; the approval is then used up.

        `attempt` says which run of the same work this is: a later one than the run that used an approval goes on with
        it, because that run did not come to its end. None: nobody can tell, and each run needs its own.

        Raises `auth.confirmation_required` while nobody has answered, with `details.confirmation_id` and `expires_at`,
        and `auth.permission_denied`, once, when it was denied, or nobody answered or used it in time. Raises ValueError
        for a `valid_s` that is not above 0, up to a week.
        """
        if not 0 < valid_s <= MAX_VALID_S:
            raise ValueError(f"expires_s is {valid_s}, it must be above 0, up to {MAX_VALID_S:.0f}")
        run = uuid.uuid4().hex
        for conflicts in range(MAX_CONFLICTS):
            found, revision = await self._read(question.name)
            now = datetime.now(UTC)
            if found is not None and found.run == run:
                return found  # Written before, and the answer was lost.
            wanted = self._next(found, question, run, attempt, valid_s, now)
            if wanted is None:
                assert found is not None
                raise required(found)
            if await self._write(wanted, after=revision):
                if wanted.state is ConfirmationState.USED:
                    return wanted
                if wanted.state is ConfirmationState.HEARD:
                    assert found is not None
                    raise refused(found.at(now))
                raise required(wanted)
            await asyncio.sleep(0.002 * 2 ** min(conflicts, 6))
        raise error("broker.unavailable", f"too many ask for the confirmation {question.name} at once; try again")

    def _next(
        self,
        found: Confirmation | None,
        question: Question,
        run: str,
        attempt: int | None,
        valid_s: float,
        now: datetime,
    ) -> Confirmation | None:
        """What asking makes of it; None: it is pending and stays so."""
        if found is not None and attempt is not None and (again := found.used_again(run, attempt)) is not None:
            return again
        if found is None or found.is_over:
            number = 1 if found is None else found.number + 1
            return Confirmation.asked(question, number=number, valid_s=valid_s, now=now)
        return found.used(run, attempt or 0, now) or found.heard(now)

    async def answer(self, id: str, *, approve: bool, by: str, reason: str | None = None) -> Answered | None:
        """A person's answer; None when there is no such confirmation. Of two at once one counts."""
        name = id.rpartition("-")[0]
        for _ in range(MAX_CONFLICTS):
            found, revision = await self._read(name)
            if found is None or found.id != id:
                return None
            now = datetime.now(UTC)
            wanted = found.answered(approve=approve, by=by, reason=reason, now=now)
            if wanted is None:
                return Answered(found.at(now), False)
            if await self._write(wanted, after=revision):
                await self._tell(wanted.id)
                return Answered(wanted, True)
        raise error("broker.unavailable", f"too many answer the confirmation {id} at once; try again")

    async def read(self, id: str) -> Confirmation | None:
        """A confirmation as it is now; None when there is none of this id, or a newer one."""
        found, _ = await self._read(id.rpartition("-")[0])
        return None if found is None or found.id != id else found.at(datetime.now(UTC))

    async def all(self, workflow_id: str | None = None) -> AsyncIterator[Confirmation]:
        """All that are known, or those of one workflow, in the order of their last change."""
        workflow = "*" if workflow_id is None else token(workflow_id)
        async for _, record in self._records.entries(f"{workflow}.*"):
            if (found := _decoded(record.value)) is not None:
                yield found.at(datetime.now(UTC))

    async def pending(self, workflow_id: str | None = None) -> list[Confirmation]:
        """Those that wait for a person, the oldest first."""
        found = [one async for one in self.all(workflow_id) if one.state is ConfirmationState.PENDING]
        return sorted(found, key=lambda one: one.created_at)

    async def until_answered(self, id: str, *, timeout_s: float) -> Confirmation | None:
        """Waits until a confirmation is not pending any more; what it is then, or after `timeout_s`."""
        changed = asyncio.Event()

        def hear(_: Arrival) -> None:
            changed.set()

        subscription = await self._connection.subscribe(self._connection.subjects.answered(id), hear)
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            while True:
                changed.clear()
                found = await self.read(id)
                left_s = deadline - asyncio.get_running_loop().time()
                if found is None or found.state is not ConfirmationState.PENDING or left_s <= 0:
                    return found
                try:
                    async with asyncio.timeout(min(LOOK_AGAIN_S, left_s)):
                        await changed.wait()
                except TimeoutError:
                    pass
        finally:
            await subscription.drain()

    async def _read(self, name: str) -> tuple[Confirmation | None, int]:
        found = await self._records.read(f"*.{token(name)}")
        return _decoded(found.value), found.revision

    async def _write(self, confirmation: Confirmation, *, after: int) -> bool:
        workflow = "-" if confirmation.workflow_id is None else token(confirmation.workflow_id)
        left_s = max(0.0, (confirmation.expires_at - datetime.now(UTC)).total_seconds())
        key, value = f"{workflow}.{confirmation.name}", orjson.dumps(confirmation.to_wire())
        ttl_s = left_s + KEPT_S
        write = self._connection.patiently(lambda: self._records.write(key, value, after=after, ttl_s=ttl_s))
        return await write is not None

    async def _tell(self, id: str) -> None:
        """Says that there is an answer; who does not hear it looks again after a while."""
        try:
            await self._connection.publish(self._connection.subjects.answered(id), b"")
        except BrokerError:
            return


def required(found: Confirmation) -> BusError:
    """The error of what waits for a person."""
    what = f"{found.capability} with exactly these arguments" if found.capability else repr(found.text)
    return error(
        REQUIRED,
        f"{found.asker} needs a person's approval for {what}: "
        f"bus workflow approve {found.id}, until {found.expires_at:%Y-%m-%d %H:%M:%S} UTC",
        confirmation_id=found.id,
        expires_at=found.expires_at.isoformat(),
        started=False,
    )


def refused(found: Confirmation) -> BusError:
    """The error of what a person has denied, or nobody allowed in time."""
    what = found.capability or repr(found.text)
    if found.state is ConfirmationState.DENIED:
        why = f" ({found.reason})" if found.reason else ""
        told = f"{found.answered_by} has denied {what}{why}; do not ask again without a change"
    elif found.answered_by is not None:
        told = f"the approval of {what} by {found.answered_by} was not used until it expired; ask again"
    else:
        told = f"nobody answered in time whether {what} may be done; ask a person, then try again"
    return error(
        "auth.permission_denied",
        told,
        confirmation_id=found.id,
        reason="denied" if found.state is ConfirmationState.DENIED else "expired",
        by=found.answered_by,
        started=False,
    )


def _decoded(value: bytes | None) -> Confirmation | None:
    if value is None:
        return None
    try:
        return Confirmation.from_wire(orjson.loads(value))
    except ValueError:
        return None
