"""Slots: how many may work in one phase on one thing at once, over all replicas (WF-1).

A slot is a lease: an entry with a lifetime, which its holder renews. Its first revision is the fencing token: a later
holder has a higher one. Who was stopped for longer than the lease finds that it has lost it at whatever it does
next: what it writes into the bucket depends on the slot's entry, so the broker refuses it; before anything else the
broker is asked.

Who must wait leaves a note, which it renews too; whose note was left first is served first.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Self

import orjson

from bus.broker.records import Record, Records, Write
from bus.broker.streams import has_conditions
from bus.broker.subjects import token
from bus.broker.tasks import end
from bus.envelope import new_message_id
from bus.errors import BrokerError, BusError, ToolError, error

TTL_S = 15.0
TIMEOUT_S = 60.0
NOTE_TTL_S = 3.0
NOTE_RENEWED_S = 1.0
FIRST_LOOK_S = 0.02
SLOWEST_LOOK_S = 0.25
LAST_S = 2.0
GONE_TTL_S = 1
MAX_TRIES = 30


@dataclass(frozen=True, slots=True)
class Place:
    """What there are slots for: a phase of a workflow in one branch, and a key in it."""

    workflow_id: str
    branch: int
    phase: str
    key: str

    def below(self, family: str) -> str:
        """Where the entries of a family (`slot`, `wait`) are."""
        return f"{token(self.workflow_id)}.{family}.{self.branch}.{token(self.phase)}.{token(self.key)}"

    def __str__(self) -> str:
        return f"{self.phase!r}" + (f" of {self.key!r}" if self.key else "")


@dataclass(frozen=True, slots=True)
class Claim:
    """Who holds a slot, or waits for one, and since when. `token` is the fencing token, 0 until it is known."""

    id: str
    by: str
    since: datetime
    phase: str
    key: str
    branch: int
    token: int = 0

    def to_wire(self) -> bytes:
        """As it stands in the entry."""
        return orjson.dumps(asdict(self))

    @classmethod
    def of(cls, record: Record) -> Claim | None:
        """Reads an entry; None for one that is gone or none of ours."""
        try:
            read = orjson.loads(record.value or b"")
            claim = cls(**{**read, "since": datetime.fromisoformat(read["since"])})
        except (KeyError, TypeError, ValueError):
            return None
        return claim if claim.token else replace(claim, token=record.revision)


class Slot:
    """One slot that is held: `async with Slots.take(...)`. `token` grows from holder to holder."""

    __slots__ = ("_claim", "_good_until", "_key", "_problem", "_records", "_renewing", "_revision", "_ttl_s", "_turn",
                 "place", "token")  # fmt: skip

    def __init__(self, records: Records, place: Place, key: str, claim: Claim, revision: int, ttl_s: float) -> None:
        self.place = place
        self.token = revision
        self._records = records
        self._key = key
        self._claim = replace(claim, token=revision)
        self._revision = revision
        self._ttl_s = ttl_s
        self._good_until = time.monotonic() + ttl_s
        self._problem: BusError | None = None
        self._turn = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._renewing = self._records.connection.tasks.start(self._keep(), name=f"slot {self._key}")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await end(self._renewing)
        await asyncio.shield(self._release())
        if kind is None and self._problem is not None:
            raise self._problem

    async def check(self) -> None:
        """Asks the broker whether it is still held. Raises ToolError `agent.busy`, retryable, when it is not."""
        if self._problem is not None:
            raise self._problem
        if (await self._records.read(self._key)).revision != self._revision:
            # A renewal of ours may have overtaken the answer, or its answer was lost.
            async with self._turn:
                self._recognise(await self._records.read(self._key))

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._ttl_s / 3)
            async with self._turn:
                asked_at, value = time.monotonic(), self._claim.to_wire()
                try:
                    revision = await self._records.write(self._key, value, after=self._revision, ttl_s=self._ttl_s)
                    if revision is not None:
                        self._revision, self._good_until = revision, asked_at + self._ttl_s
                        continue
                    self._recognise(await self._records.read(self._key))
                except ToolError:
                    return
                except BrokerError:
                    if time.monotonic() >= self._good_until:
                        self._problem = self._error("nobody could renew it in time")
                        return

    def _recognise(self, found: Record) -> None:
        """Goes on from an entry of its own, such as a renewal whose answer was lost; raises for any other."""
        claim = Claim.of(found)
        if claim is None or claim.id != self._claim.id:
            raise self._lost(found)
        self._revision = found.revision

    def _lost(self, found: Record) -> BusError:
        claim = Claim.of(found)
        if claim is not None and claim.id != self._claim.id:
            why = f"{claim.by} holds it since {claim.since:%H:%M:%S}, token {claim.token}"
        else:
            why = "it has expired"
        self._problem = self._problem or self._error(why)
        return self._problem

    def _error(self, why: str) -> BusError:
        return error(
            "agent.busy",
            f"the slot {self.place} of workflow {self.place.workflow_id}, token {self.token}, is lost: {why}; nothing "
            "more is done under it. Hold it with a longer `ttl_s`, or do not block the event loop",
            reason="slot_lost",
            token=self.token,
        )

    async def _release(self) -> None:
        with contextlib.suppress(BusError, TimeoutError):
            async with asyncio.timeout(LAST_S):
                taken = await self._records.take_away(self._key, after=self._revision, ttl_s=GONE_TTL_S)
                if taken is None:
                    self._lost(await self._records.read(self._key))


class Slots:
    """Takes slots of one bucket for one holder, whom others see as `by`."""

    __slots__ = ("_by", "_records")

    def __init__(self, records: Records, by: str) -> None:
        self._records = records
        self._by = by

    async def take(self, place: Place, *, limit: int, ttl_s: float, timeout_s: float) -> Slot:
        """Takes one of `limit` slots, waits for it up to `timeout_s`.

        Raises ToolError `agent.busy`, retryable, with who holds them when there is none by then; BrokerError.
        """
        claim = Claim(new_message_id(), self._by, datetime.now(UTC), place.phase, place.key, place.branch)
        if await self._records.first_key(f"{place.below('wait')}.*") is None:
            slot, _ = await self._try(place, claim, limit, ttl_s)
            if slot is not None:
                return slot
        note = f"{place.below('wait')}.{claim.id}"
        ticket = await self._records.write(note, claim.to_wire(), after=None, ttl_s=NOTE_TTL_S)
        claim = replace(claim, token=ticket or 0)
        try:
            return await self._wait(place, claim, note, limit=limit, ttl_s=ttl_s, timeout_s=timeout_s)
        finally:
            with contextlib.suppress(BusError, TimeoutError):
                async with asyncio.timeout(LAST_S):
                    await self._records.take_away(note, ttl_s=GONE_TTL_S)

    async def _wait(self, place: Place, claim: Claim, note: str, *, limit: int, ttl_s: float, timeout_s: float) -> Slot:
        deadline, renew_at = time.monotonic() + timeout_s, time.monotonic() + NOTE_RENEWED_S
        pause_s = FIRST_LOOK_S
        while True:
            held: Sequence[Claim] = await self.holders(place, limit)
            if len(held) < limit and claim.id in await self._next(place, limit - len(held)):
                slot, held = await self._try(place, claim, limit, ttl_s)
                if slot is not None:
                    return slot
            if time.monotonic() >= deadline:
                raise _busy(place, held, limit, timeout_s)
            if time.monotonic() >= renew_at:
                renew_at = time.monotonic() + NOTE_RENEWED_S
                with contextlib.suppress(BrokerError):
                    await self._records.write(note, claim.to_wire(), after=None, ttl_s=NOTE_TTL_S)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(SLOWEST_LOOK_S, pause_s * 1.5)

    async def _next(self, place: Place, count: int) -> list[str]:
        """The ids of those who are served next."""
        notes = self._records.entries(f"{place.below('wait')}.*")
        waiting = [claim async for _, one in notes if (claim := Claim.of(one)) is not None]
        return [claim.id for claim in sorted(waiting, key=lambda claim: claim.token)[:count]]

    async def holders(self, place: Place, limit: int) -> list[Claim]:
        """Who holds the slots now."""
        found = [await self._records.read(f"{place.below('slot')}.{number}") for number in range(limit)]
        return [claim for claim in map(Claim.of, found) if claim is not None]

    async def _try(self, place: Place, claim: Claim, limit: int, ttl_s: float) -> tuple[Slot | None, list[Claim]]:
        held: list[Claim] = []
        for number in range(limit):
            key = f"{place.below('slot')}.{number}"
            found = await self._records.read(key)
            holder = Claim.of(found)
            if holder is not None:
                if holder.id == claim.id:
                    # An attempt of ours whose answer was lost.
                    return Slot(self._records, place, key, claim, found.revision, ttl_s), held
                held.append(holder)
                continue
            first = replace(claim, since=datetime.now(UTC), token=0)
            revision = await self._records.write(key, first.to_wire(), after=found.revision, ttl_s=ttl_s)
            if revision is not None:
                return Slot(self._records, place, key, first, revision, ttl_s), held
        return None, held


class Held:
    """The slots that one handler holds, as the fence of everything that it does.

    `check` raises when nothing may be done in its course any more, whatever it holds.
    """

    __slots__ = ("_check", "_slots")

    def __init__(self, slots: Sequence[Slot] = (), *, check: Callable[[], None] | None = None) -> None:
        self._slots = tuple(slots)
        self._check = check

    @property
    def is_any(self) -> bool:
        """Whether there is one."""
        return bool(self._slots)

    def and_(self, slot: Slot) -> Held:
        """With one more."""
        return Held((*self._slots, slot), check=self._check)

    def without(self, slot: Slot) -> Held:
        """With one less."""
        return Held([one for one in self._slots if one is not slot], check=self._check)

    async def confirm(self) -> None:
        """Raises ToolError `agent.busy`, retryable, when one of them is lost; what `check` raises."""
        if self._check is not None:
            self._check()
        for slot in self._slots:
            await slot.check()

    async def write(self, records: Records, write: Write) -> int | None:
        """A write that the broker refuses once a slot is lost, even if this process was stopped in the middle of it."""
        if not self._slots:
            await self.confirm()
            return await records.write(write.key, write.value, after=write.after)
        if not has_conditions(records.connection.server_version):
            await self.confirm()
            return await records.write(write.key, write.value, after=write.after)
        everything = f"{token(self._slots[0].place.workflow_id)}.>"
        for tries in range(MAX_TRIES):
            # What is read after it is what it is, unless something has changed by the time of the write.
            newest = await records.newest(everything)
            await self.confirm()
            if (await records.read(write.key)).revision != write.after:
                return None
            revision = await records.write_while(everything, newest, write.key, write.value)
            if revision is not None:
                return revision
            await asyncio.sleep(random.uniform(0, min(0.1, 0.002 * 2**tries)))
        return None


def _busy(place: Place, held: Sequence[Claim], limit: int, waited_s: float) -> BusError:
    who = "; ".join(f"{one.by} since {one.since:%H:%M:%S}" for one in held) or "others who waited longer"
    slots = "the slot" if limit == 1 else f"one of {limit} slots"
    return error(
        "agent.busy",
        f"{slots} {place} of workflow {place.workflow_id} was not free within {waited_s:g} s; held by {who}",
        reason="slot_busy",
        holders=[one.by for one in held],
    )
