"""The pull of an agent with several lanes: one limit over all of them, asked in turns.

While a slot is free it asks the lanes one after another, without waiting, for no more than fits. When all are
empty it waits on all of them at once, and withdraws the rest when one gives. What comes beyond the free slots (from two
lanes in the same instant) is held while slots are freed one after another, else handed back after a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Callable

import orjson

from bus.broker.connection import Connection, Subscription
from bus.broker.lanes import Lane, ensure_lane
from bus.broker.parser import Arrival
from bus.broker.pull import EXPIRES_S, HEARTBEAT_S, NANOSECONDS, RETRY_S, SILENCE_S, Delivery
from bus.broker.subjects import is_key_lane
from bus.broker.tasks import end
from bus.broker.turns import KEYS, Turns, group_of
from bus.errors import BusError

log = logging.getLogger("bus.broker")

ANSWER_S = 2.0
# A key lane whose message is in flight elsewhere answers nothing at all.
KEY_ANSWER_S = 0.01
# What comes beyond the free slots waits for as long as slots are freed, within a part of the ack wait.
HOLD_S = 0.5
HOLD_PART, LONGEST_HOLD_PART = 0.05, 0.3

Take = Callable[[Lane, Delivery], None]


class _Request:
    """One request for messages of one lane, until it is used up or the server ends it."""

    __slots__ = ("ended", "got", "lane", "left")

    def __init__(self, lane: Lane, batch: int) -> None:
        self.lane = lane
        self.left = batch
        self.got = 0
        self.ended = asyncio.Event()


class LanedPull:
    """Pulls from several lanes for as long as it is started.

    `take` is called for each message, never for more than `room` says, `missing` before a consumer is made again that
    may have been deleted; both must neither block nor raise. Call `ended` for each message that is settled.
    """

    def __init__(
        self, connection: Connection, *, take: Take, room: Callable[[], int], missing: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._take = take
        self._room = room
        self._missing = missing
        self._turns = Turns()
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._fresh: set[Lane] = set()
        self._prefix = connection.new_inbox()
        self._inbox = ""
        self._inbox_number = 0
        self._request_number = 0
        self._requests: dict[str, _Request] = {}
        self._held: deque[tuple[float, Lane, Delivery]] = deque()
        self._freed_at = 0.0
        self._hold_s = max(HOLD_S, HOLD_PART * connection.settings.ack_wait_s)
        self._longest_hold_s = max(HOLD_S, LONGEST_HOLD_PART * connection.settings.ack_wait_s)
        self._busy: Counter[Lane] = Counter()
        self._heard_at = 0.0
        self._pause = False
        self._stirred = asyncio.Event()
        self._subscription: Subscription | None = None
        self._task: asyncio.Task[None] | None = None

    def add(self, lane: Lane) -> None:
        """Takes a lane in, or its new subjects; its consumer is made by the pull itself."""
        self._lanes[lane.stream, lane.consumer] = lane
        self._fresh.add(lane)
        self._turns.add(group_of(lane.name))
        self._stirred.set()

    async def start(self) -> None:
        """Begins to pull."""
        self._connection.on_reconnect(self._start_over)
        self._task = self._connection.tasks.start(self._run(), name=f"pull {self._connection.name} by lanes")

    async def stop(self) -> None:
        """Stops pulling. Everything that the server had already sent is taken or handed back before it returns."""
        if self._task is None:
            return
        await end(self._task)
        self._task = None
        self._connection.remove_listener(self._start_over)
        if self._subscription is not None:
            await self._subscription.drain()
            self._subscription = None
        with contextlib.suppress(BusError):
            await self._hand_back(hold_s=0.0)

    def ended(self, delivery: Delivery) -> None:
        """Says that a message is settled, so that there is room for another."""
        lane = self._lane_of(delivery.reply)
        if lane is not None:
            self._busy[lane] -= 1
        self._freed_at = time.monotonic()
        self._stirred.set()

    def wake(self) -> None:
        """Says that there may be room for more."""
        self._stirred.set()

    async def _run(self) -> None:
        while True:
            try:
                await self._connection.wait_connected(EXPIRES_S)
                await self._ensure_fresh()
                if self._pause:
                    self._pause = False
                    await asyncio.sleep(RETRY_S)
                self._stirred.clear()
                self._take_held()
                if self._room() <= 0:
                    await self._withdraw()
                    await self._until_stirred(self._hold_s if self._held else EXPIRES_S)
                    await self._hand_back(hold_s=self._hold_s)
                elif not await self._ask_in_turn():
                    await self._wait_on_all()
            except BusError as problem:
                log.debug("pull of %s: %s", self._connection.name, problem)
                await asyncio.sleep(RETRY_S)

    async def _ensure_fresh(self) -> None:
        while self._fresh:
            lane = next(iter(self._fresh))
            await ensure_lane(self._connection, lane)
            self._fresh.discard(lane)

    async def _ask_in_turn(self) -> bool:
        """Asks until the room is used up or every lane is empty; whether any gave something."""
        await self._open_inbox()
        asked: dict[str, int] = {}
        for turn in self._turns.order():
            room = self._room()
            if room <= 0:
                break
            lanes = [lane for lane in self._lanes.values() if group_of(lane.name) == turn.group]
            if turn.group == KEYS:
                waiting = {request.lane for request in self._requests.values()}
                lanes = [lane for lane in lanes if self._busy[lane] <= 0 and lane not in waiting]
                lanes = lanes[: 1 if turn.is_one_only else room]
                requests = [await self._request(lane, 1) for lane in lanes]
                # What gave nothing is asked last the next time.
                for lane in lanes:
                    self._lanes[lane.stream, lane.consumer] = self._lanes.pop((lane.stream, lane.consumer))
            else:
                requests = [await self._request(lane, 1 if turn.is_one_only else room) for lane in lanes]
            answer_s = KEY_ANSWER_S if turn.group == KEYS else ANSWER_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(answer_s):
                    for request in requests:
                        await request.ended.wait()
            asked[turn.group] = sum(request.got for request in requests)
        self._turns.took(asked)
        return any(asked.values())

    async def _wait_on_all(self) -> None:
        await self._withdraw()
        self._stirred.clear()
        if self._fresh or self._pause or (room := self._room()) <= 0:
            return
        await self._open_inbox()
        share = max(1, room // len(self._lanes))
        self._heard_at = time.monotonic()
        for lane in list(self._lanes.values()):
            await self._request(lane, 1 if is_key_lane(lane.name) else share, wait=True)
        while not self._stirred.is_set():
            await self._until_stirred(HEARTBEAT_S)
            if time.monotonic() - self._heard_at > SILENCE_S:
                # A deleted consumer is silent too.
                self._missing()
                self._fresh.update(self._lanes.values())
                break
        await self._withdraw()

    async def _until_stirred(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._stirred.wait()

    async def _request(self, lane: Lane, batch: int, *, wait: bool = False) -> _Request:
        self._request_number += 1
        request = self._requests[str(self._request_number)] = _Request(lane, batch)
        body: dict[str, int | bool] = {"batch": batch}
        if wait:
            body |= {"expires": int(EXPIRES_S * NANOSECONDS), "idle_heartbeat": int(HEARTBEAT_S * NANOSECONDS)}
        else:
            body["no_wait"] = True
        await self._connection.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{lane.stream}.{lane.consumer}",
            orjson.dumps(body),
            reply=f"{self._inbox}.{self._request_number}",
        )
        return request

    async def _open_inbox(self) -> None:
        if self._subscription is None:
            self._inbox_number += 1
            self._inbox = f"{self._prefix}.{self._inbox_number}"
            self._subscription = await self._connection.subscribe(f"{self._inbox}.*", self._receive)

    async def _withdraw(self) -> None:
        """Takes back every open request: without a subscriber the server drops them."""
        if not self._requests:
            return
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.drain()
        self._forget()

    def _start_over(self) -> None:
        self._forget()
        # The server gives them again, perhaps to others: what has not begun is not ours any more.
        self._held.clear()
        self._stirred.set()

    def _forget(self) -> None:
        """Forgets every open request; what still comes for one is taken or held."""
        for request in self._requests.values():
            request.ended.set()
        self._requests.clear()

    def _receive(self, message: Arrival) -> None:
        self._heard_at = time.monotonic()
        if message.subject.startswith(self._prefix):
            self._status(message)
            return
        lane = self._lane_of(message.reply)
        if lane is None:
            log.warning("something that no stream sent arrived on an inbox, and is ignored: %s", message.subject)
            return
        for number, request in self._requests.items():
            if request.lane == lane:
                request.got += 1
                request.left -= 1
                if request.left <= 0:
                    self._end(number)
                break
        self._held.append((time.monotonic(), lane, Delivery.of(message)))
        self._take_held()
        self._stirred.set()

    def _take_held(self) -> None:
        while self._held and self._room() > 0:
            _, lane, delivery = self._held.popleft()
            self._busy[lane] += 1
            self._take(lane, delivery)

    async def _hand_back(self, *, hold_s: float) -> None:
        """Gives back what no slot is about to be free for: each hand-back counts as a delivery."""
        while self._held:
            held_at, _, delivery = self._held[0]
            now = time.monotonic()
            if hold_s and now - max(held_at, self._freed_at) < hold_s and now - held_at < self._longest_hold_s:
                return
            self._held.popleft()
            await self._connection.publish(delivery.reply, b"-NAK")

    def _status(self, message: Arrival) -> None:
        headers = message.headers or {}
        status, number = headers.get("Status", ""), message.subject.rpartition(".")[2]
        if status == "100" or number not in self._requests:
            return
        request = self._requests[number]
        description = headers.get("Description", "").lower()
        if status == "503" or "deleted" in description or "leadership" in description:
            self._missing()
            self._fresh.add(request.lane)
            self._pause = status == "503"
        elif status not in ("404", "408"):
            log.debug("pull from %s: %s %s", request.lane.consumer, status, headers.get("Description", ""))
            self._pause = True
        self._end(number)
        self._stirred.set()

    def _end(self, number: str) -> None:
        self._requests.pop(number).ended.set()

    def _lane_of(self, reply: str) -> Lane | None:
        tokens = reply.split(".")
        if len(tokens) < 9:
            return None
        first = 2 if len(tokens) == 9 else 4
        return self._lanes.get((tokens[first], tokens[first + 1]))
