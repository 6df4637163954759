"""Holding: messages that must wait for a person are parked, and go on from there (WF-7, SEC-3).

A message that is delivered while its workflow is paused, or whose handler waits for an approval, is copied into a
stream of parked messages and acknowledged. When its time has come a replica of its agent sends the copy again, with a
mark; the parked one goes when that begins. Each step may be repeated by anybody: the server and the completions know
copies. On a key lane one message is in flight at a time, so whoever finds a parked one before it parks behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime

from bus.broker.connection import Connection
from bus.broker.held import MARK, NO_WORKFLOW, PAUSED, SUBJECT, UNTIL, Held, Mark
from bus.broker.messages import delete_message, first_of, get_message
from bus.broker.parser import Arrival
from bus.broker.pull import Delivery
from bus.broker.reader import StreamReader
from bus.broker.store import store
from bus.broker.stream_names import StreamNames
from bus.broker.streams import subjects_with_messages
from bus.broker.subjects import BROADCAST, is_key_lane, token
from bus.broker.tasks import end
from bus.delivery.handover import HandOver
from bus.delivery.letter import ATTEMPTS, attempts_before
from bus.delivery.settlement import Settlement, Verdict
from bus.envelope import Envelope
from bus.errors import BusError, ErrorInfo, Rejected
from bus.trust.confirmation import ConfirmationState
from bus.trust.confirmations import REQUIRED, Confirmations
from bus.workflow.control import Control, ControlWatch

log = logging.getLogger("bus.delivery")

# What nobody told this replica of is found after this time.
LOOK_AGAIN_S = 30.0
RETRY_S = 1.0
AT_ONCE = 32
_ACK = Settlement(Verdict.ACK)


class Holding:
    """What one replica of an agent parks, and sends again. `hand_over` is asked about all other failures."""

    def __init__(
        self,
        connection: Connection,
        agent: str,
        *,
        controls: ControlWatch,
        confirmations: Confirmations,
        hand_over: HandOver,
    ) -> None:
        self._connection = connection
        self._agent = agent
        self._controls = controls
        self._confirmations = confirmations
        self._hand_over = hand_over
        self._stream = StreamNames.of(connection.settings.namespace).held
        self._sent: set[tuple[int, int]] = set()
        self._look = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begins to look for parked messages whose time has come. Raises BrokerError."""
        self._answers = await self._connection.subscribe(self._connection.subjects.answered("*"), self._answered)
        self._task = self._connection.tasks.start(self._run(), name=f"parked messages of {self._agent}")

    async def stop(self) -> None:
        """Stops; a second call does nothing."""
        if self._task is not None:
            task, self._task = self._task, None
            await self._answers.drain()
            await end(task)

    def decided(self) -> None:
        """Hears that something was decided about a workflow: parked messages may go on."""
        self._look.set()

    # -- parking --

    def concerns(self, delivery: Delivery) -> bool:
        """Whether a delivery has to be looked at more closely: `takes`."""
        return MARK in delivery.headers or self._controls.may_concern(delivery.data)

    async def takes(self, delivery: Delivery) -> bool:
        """Parks a delivery and acknowledges it, if its workflow is paused; else False: it is to be handled now.

        Raises BrokerError, and then the message comes again.
        """
        try:
            envelope = Envelope.decode(delivery.data)
        except Rejected:
            return False  # The pipeline says what is wrong with it.
        mark, parked = await self._parked(delivery)
        control = await self._controls.understand(envelope)
        if control is not None and control.verdict(envelope) is None:
            pause = control.paused(envelope)
            waits = pause is not None and (mark is None or pause.revision > mark.revision)
            if waits or await self._is_behind(delivery, envelope, control, mark, parked):
                # One that is parked already keeps its place.
                if parked is None and not await self._park(delivery, envelope, PAUSED):
                    return False
                await self._connection.publish(delivery.reply, b"+ACK")
                if not waits:
                    self._look.set()  # It comes behind what goes on already.
                return True
        if parked is not None:
            await delete_message(self._connection, self._stream, parked.seq)
        return False

    async def instead(self, delivery: Delivery, failure: ErrorInfo) -> Settlement | None:
        """The settlement in place of a dead letter: parked, for what waits for a person. Raises BrokerError."""
        confirmation_id = failure.details.get("confirmation_id")
        if failure.code != REQUIRED or not isinstance(confirmation_id, str):
            return await self._hand_over.instead(delivery, failure)
        envelope = Envelope.decode(delivery.data)
        if is_key_lane(_lane(delivery)) and envelope.workflow_id is not None:
            await self._controls.keep_order(envelope.workflow_id)
        until = failure.details.get("expires_at")
        if not await self._park(delivery, envelope, token(confirmation_id), until=until, began=1):
            return None
        log.info("%s: %s waits for a person: %s", self._agent, envelope.message_id, confirmation_id)
        self._look.set()  # It may have been answered meanwhile.
        return _ACK

    async def _parked(self, delivery: Delivery) -> tuple[Mark | None, Held | None]:
        """The mark of a delivery, and what is still parked for it. One that was made up counts for nothing."""
        mark = Mark.of(delivery.headers)
        found = None if mark is None else await get_message(self._connection, self._stream, mark.seq)
        if mark is None or found is None:
            return mark, None
        parked = Held.of(found)
        if parked is None or parked.agent != self._agent or parked.data != delivery.data:
            return None, None
        return mark, parked

    async def _is_behind(
        self, delivery: Delivery, envelope: Envelope, control: Control, mark: Mark | None, parked: Held | None
    ) -> bool:
        """Whether an earlier message of its partition key is parked. One that has begun before goes on first."""
        lane = _lane(delivery)
        has_begun = mark is not None and parked is None
        if not control.is_ordered or has_begun or not is_key_lane(lane):
            return False
        subject = self._connection.subjects.held(self._agent, _workflow(envelope), lane, "*")
        first = await first_of(self._connection, self._stream, subject)
        return first is not None and (parked is None or first < parked.seq)

    async def _park(
        self, delivery: Delivery, envelope: Envelope, why: str, *, until: str | None = None, began: int = 0
    ) -> bool:
        """Stores it among the parked; False for what cannot be sent again. `began`: how often it was handled now."""
        subjects = self._connection.subjects
        target, data, lane = subjects.again(self._agent, delivery.subject), delivery.data, _lane(delivery)
        if envelope.to == BROADCAST:
            # For this agent alone it waits, so it is sent to it alone.
            lane, data = "normal", envelope.replace(to=self._agent).encode()
            target = subjects.work(self._agent, lane, envelope.sender, envelope.type)
        if target is None:
            return False
        own = {name: value for name, value in delivery.headers.items() if not name.startswith(("Nats-", "Bus-Held"))}
        before = attempts_before(delivery.headers) + max(0, delivery.attempt - 1) + began
        headers = own | ({ATTEMPTS: str(before)} if before else {}) | ({UNTIL: until} if until else {})
        headers[SUBJECT] = target
        # The server keeps copies of one delivery apart from others for two minutes, the completions for longer.
        place = f"{delivery.subject.split('.')[2]}:{delivery.stream_seq}:{delivery.stored_ns}"
        headers["Nats-Msg-Id"] = f"park:{self._agent}:{place}:{why}"
        subject = subjects.held(self._agent, _workflow(envelope), lane, why)
        timeout_s = self._connection.settings.publish_timeout_s
        await store(self._connection, subject, data, headers, timeout_s=timeout_s)
        return True

    # -- sending again --

    def _answered(self, _: Arrival) -> None:
        self._look.set()

    async def _run(self) -> None:
        while True:
            self._look.clear()
            wait_s = LOOK_AGAIN_S
            try:
                wait_s = await self._send_those_whose_time_has_come()
            except BusError as problem:
                log.debug("%s cannot look at its parked messages: %s", self._agent, problem.info.message)
                wait_s = RETRY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._look.wait()

    async def _send_those_whose_time_has_come(self) -> float:
        """Sends them, in their order where they have one; returns when to look again, in seconds."""
        pattern = self._connection.subjects.held(self._agent, "*", "*", "*")
        groups = defaultdict[tuple[str, str], set[str]](set)
        for subject in await subjects_with_messages(self._connection, self._stream, pattern):
            workflow, lane, why = subject.split(".")[4:7]
            groups[workflow, lane].add(why)
        wait_s = LOOK_AGAIN_S
        for (workflow, lane), whys in groups.items():
            control = self._controls.named(workflow)
            if control is not None and control.is_paused_whole and not control.cancels:
                continue
            waiting = {why: await self._waits_s(why) for why in whys if why != PAUSED}
            if waiting and control is None and PAUSED not in whys and all(waiting.values()):
                wait_s = min(wait_s, *waiting.values())
                continue
            wait_s = min([wait_s, *(left_s for left_s in waiting.values() if left_s)])
            await self._send_again(workflow, lane, control, waiting)
        if not groups:
            self._sent.clear()
        return max(0.05, wait_s)

    async def _waits_s(self, confirmation: str) -> float:
        """How long a confirmation may still be pending; 0 when it is not."""
        found = await self._confirmations.read(confirmation)
        if found is None or found.state is not ConfirmationState.PENDING:
            return 0.0
        return max(0.05, (found.expires_at - datetime.now(UTC)).total_seconds())

    async def _send_again(self, workflow: str, lane: str, control: Control | None, waiting: dict[str, float]) -> None:
        subject = self._connection.subjects.held(self._agent, workflow, lane, "*")
        revision = 0 if control is None else control.revision
        ready: list[Held] = []
        async with StreamReader(self._connection, self._stream, subjects=[subject], start_seq=1) as reader:
            async for delivery in reader.until_now():
                held = Held.of(delivery)
                if held is None:
                    continue
                if await self._is_ready(held, control, waiting):
                    ready.append(held)
                elif is_key_lane(lane):
                    break
        if is_key_lane(lane):
            for held in ready:
                await self._send(held, revision)
            return
        await self._send_all(ready, revision)

    async def _is_ready(self, held: Held, control: Control | None, waiting: dict[str, float]) -> bool:
        if control is not None:
            envelope = Envelope.decode(held.data)
            await self._controls.understand(envelope)
            if control.verdict(envelope) is not None:
                return True
            if control.paused(envelope) is not None:
                return False
        return held.why == PAUSED or not waiting.get(held.why)

    async def _send_all(self, ready: Iterable[Held], revision: int) -> None:
        left = iter(ready)

        async def work() -> None:
            for held in left:
                await self._send(held, revision)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(work())
        except BaseExceptionGroup as problems:
            raise problems.exceptions[0] from None

    async def _send(self, held: Held, revision: int) -> None:
        # Who wrote it there could have named any subject.
        is_own = self._connection.subjects.is_work_of(self._agent, held.subject)
        if (held.seq, revision) in self._sent or not is_own:
            return
        timeout_s = self._connection.settings.publish_timeout_s
        await store(self._connection, held.subject, held.data, held.again(revision), timeout_s=timeout_s)
        self._sent.add((held.seq, revision))


def _lane(delivery: Delivery) -> str:
    tokens = delivery.subject.split(".")
    return tokens[4] if tokens[2] == "work" and len(tokens) == 7 else "normal"


def _workflow(envelope: Envelope) -> str:
    return NO_WORKFLOW if envelope.workflow_id is None else token(envelope.workflow_id)
