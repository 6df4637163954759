"""Repair: what the server gave up on becomes a dead letter like any other (DEL-4).

After `max_deliver` deliveries the server keeps a message and delivers it no more. It says so in an advisory, which
the dead-letter stream captures. Every replica of an agent follows the advisories of its own consumer, those from
before its start first; several replicas at once make one letter.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import orjson

from bus.broker.connection import Connection
from bus.broker.lanes import consumers_of
from bus.broker.messages import delete_message, get_message
from bus.broker.pull import Delivery
from bus.broker.reader import StreamReader
from bus.broker.streams import StreamNames, given_up
from bus.broker.tasks import end
from bus.delivery.counting import count
from bus.delivery.dead_letters import DeadLetters
from bus.delivery.dedupe import Claim, Dedupe, digest
from bus.delivery.publisher import Publisher
from bus.delivery.refusal import REFUSAL_TTL_S, refusals
from bus.delivery.tracing import DeliveryTracing
from bus.envelope import Envelope
from bus.errors import BusError, ErrorInfo, Rejected, error
from bus.telemetry.context import TraceContext
from bus.telemetry.metrics import DEAD, Deliveries

log = logging.getLogger("bus.delivery")

AGAIN_S = 2.0
CLOCK_MARGIN = timedelta(minutes=2)


class Repair:
    """The repair of one replica of one agent."""

    def __init__(
        self,
        connection: Connection,
        agent: str,
        *,
        dedupe: Dedupe,
        publisher: Publisher,
        tracing: DeliveryTracing,
        deliveries: Deliveries,
    ) -> None:
        self._connection = connection
        self._agent = agent
        self._dedupe = dedupe
        self._publisher = publisher
        self._tracing = tracing
        self._deliveries = deliveries
        self._dead_letters = DeadLetters(connection)
        self._names = StreamNames.of(connection.settings.namespace)
        self._reader = StreamReader(
            connection,
            self._names.dead,
            subjects=[given_up(stream, consumer) for stream, consumer in consumers_of(connection, agent)],
            start_seq=1,
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begins with the advisories that are stored, then follows. Raises BrokerError."""
        await self._reader.__aenter__()
        self._task = self._connection.tasks.start(self._run(), name=f"repair {self._agent}")

    async def stop(self) -> None:
        """Stops; an advisory in hand is taken up by the next replica. A second call does nothing."""
        if self._task is not None:
            await end(self._task)
            self._task = None
            await self._reader.__aexit__()

    async def _run(self) -> None:
        waiting: list[Delivery] = []
        while True:
            try:
                async with asyncio.timeout(AGAIN_S if waiting else None):
                    waiting.append(await self._reader.next())
            except TimeoutError:
                pass
            waiting = [advisory for advisory in waiting if not await self._is_settled(advisory)]

    async def _is_settled(self, advisory: Delivery) -> bool:
        """Mends what one advisory names; False when it has to be looked at again."""
        try:
            stream, stream_seq, deliveries = _read(advisory.data)
            if not await self._mend(advisory, stream, stream_seq, deliveries):
                return False
        except ValueError as problem:
            log.warning("an advisory for %s cannot be read and is removed: %s", self._agent, problem)
        except BusError as problem:
            log.warning("what the server gave up on waits for its repair: %s", problem.info.message)
            return False
        try:
            await delete_message(self._connection, self._names.dead, advisory.stream_seq)
        except BusError as problem:
            log.debug("the advisory %d stays: %s", advisory.stream_seq, problem)
        return True

    async def _mend(self, advisory: Delivery, stream: str, stream_seq: int, deliveries: int) -> bool:
        found = await get_message(self._connection, stream, stream_seq)
        if found is None or self._connection.subjects.again(self._agent, found.subject) is None:
            return True  # settled meanwhile, or somebody else's
        lost = found._replace(attempt=deliveries)
        envelope = _envelope(lost.data)
        if envelope is None:
            await self._bury(advisory, lost, None)
        else:
            # A slow handler, here or elsewhere, may still have completed what the server gave up on.
            key = digest(envelope.sender, envelope.message_id)
            claim = await self._dedupe.claim(key, seq=stream_seq, redelivered=True)
            if claim is Claim.HELD:
                return False
            if claim is Claim.TAKEN:
                try:
                    await self._bury(advisory, lost, envelope)
                finally:
                    self._dedupe.release(key)
        # Last, because after it the dead letter is all that is left.
        await delete_message(self._connection, stream, stream_seq)
        return True

    async def _bury(self, advisory: Delivery, lost: Delivery, envelope: Envelope | None) -> None:
        failure = error(
            "tool.execution_failed",
            f"the server gave up after {lost.attempt} deliveries that nobody settled; handling it probably ends the "
            "process or outlasts the ack wait",
            deliveries=lost.attempt,
        ).info
        if not await self._is_buried(advisory, lost):
            dead_id, is_new = await self._dead_letters.bury(lost, agent=self._agent, failure=failure)
            # Another replica may have been faster.
            if is_new:
                self._tracing.given_up(lost, envelope, code=failure.code, reason=failure.message, dead_id=dead_id)
                count(self._deliveries, envelope, DEAD, failure.code)
        await self._tell_sender(lost, envelope, failure)

    async def _is_buried(self, advisory: Delivery, lost: Delivery) -> bool:
        """Whether a replica did so and ended before it removed the message.

        The letter's own `Nats-Msg-Id` says so for two minutes only.
        """
        reader = StreamReader(
            self._connection,
            self._names.dead,
            subjects=[self._connection.subjects.dead(self._agent, "*")],
            start_time=max(lost.stored_at, advisory.stored_at - CLOCK_MARGIN),
        )
        async with reader:
            async for buried in reader.until_now():
                story = (buried.headers.get("Bus-Origin-Subject"), buried.headers.get("Bus-Origin-Seq"))
                if story == (lost.subject, str(lost.stream_seq)):
                    return True
        return False

    async def _tell_sender(self, lost: Delivery, envelope: Envelope | None, failure: ErrorInfo) -> None:
        try:
            subject = self._connection.subjects.parse_work(lost.subject)
        except Rejected:
            return
        for refusal in refusals(lost, subject, envelope, agent=self._agent, failure=failure):
            parent = TraceContext.from_headers(lost.headers)
            await self._publisher.publish(refusal, parent=parent, ttl_s=REFUSAL_TTL_S)


def _read(data: bytes) -> tuple[str, int, int]:
    """The stream, the sequence and the deliveries that an advisory names. Raises ValueError."""
    try:
        advisory = orjson.loads(data)
        return str(advisory["stream"]), int(advisory["stream_seq"]), int(advisory["deliveries"])
    except (KeyError, TypeError) as problem:
        raise ValueError(f"no stream, stream_seq or deliveries in it ({problem})") from problem


def _envelope(data: bytes) -> Envelope | None:
    try:
        return Envelope.decode(data)
    except Rejected:
        return None
