"""The outcome of one message: what its sender can learn about it from the streams."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from bus.broker.connection import Connection
from bus.broker.messages import delete_message
from bus.broker.pull import Delivery
from bus.broker.reader import StreamReader
from bus.broker.streams import StreamNames
from bus.broker.survey import agent_queues
from bus.broker.tasks import end
from bus.delivery.dead_letters import DeadLetters
from bus.delivery.letter import DeadLetter
from bus.envelope import Envelope, instant
from bus.errors import BusError, Rejected
from bus.workflow import completions

REPLY_AFTER_COMPLETION_S = 0.5
CLOCK_MARGIN = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A reply, a dead letter, a completion without a reply, or (nothing set) no answer in time."""

    reply: Envelope | None = None
    dead: DeadLetter | None = None
    is_handled: bool = False


async def outcome_of(connection: Connection, sent: Envelope, *, timeout_s: float) -> Outcome:
    """Waits for what becomes of a message that was just sent. Raises BrokerError.

    A reply is the first message to the sender that names the sent one as its cause. It is taken from the
    sender's queue, unless an agent of that name has a consumer for it.
    """
    names = StreamNames.of(connection.settings.namespace)
    since = (instant(sent.timestamp) if sent.timestamp else datetime.now(UTC)) - CLOCK_MARGIN
    is_agent = any(one.agent == sent.sender and one.replicas is not None for one in await agent_queues(connection))
    arrived: asyncio.Queue[Outcome | BusError] = asyncio.Queue()
    dead_letters = DeadLetters(connection)

    async def as_reply(delivery: Delivery) -> Outcome | None:
        with contextlib.suppress(Rejected):
            seen = Envelope.decode(delivery.data)
            if seen.causation_id == sent.message_id and seen.to == sent.sender:
                # A delayed reply was copied from another stream than the rest.
                origin = names.later if delivery.headers.get("Nats-Stream") == names.later else names.work
                if not is_agent and (seq := delivery.headers.get("Nats-Sequence", "")).isdecimal():
                    await delete_message(connection, origin, int(seq))
                return Outcome(reply=seen)
        return None

    async def as_dead(delivery: Delivery) -> Outcome | None:
        dead = await dead_letters.read(delivery)
        buried = dead.envelope()
        if buried is None or (buried.sender, buried.message_id) != (sent.sender, sent.message_id):
            return None
        return Outcome(dead=dead)

    async def as_handled(delivery: Delivery) -> Outcome | None:
        with contextlib.suppress(ValueError):
            done = completions.decode(delivery.data)
            if any((one.sender, one.message_id) == (sent.sender, sent.message_id) for one in done):
                return Outcome(is_handled=True)
        return None

    async def read(stream: str, subject: str, recognise: Callable[[Delivery], Awaitable[Outcome | None]]) -> None:
        try:
            async with StreamReader(connection, stream, subjects=[subject], start_time=since) as reader:
                async for delivery in reader:
                    if (outcome := await recognise(delivery)) is not None:
                        await arrived.put(outcome)
        except BusError as problem:
            await arrived.put(problem)

    subjects = connection.subjects
    tasks = [
        asyncio.create_task(read(names.history, subjects.history_of(sent.sender), as_reply)),
        asyncio.create_task(read(names.dead, subjects.dead(sent.to, "*"), as_dead)),
        asyncio.create_task(read(names.done, subjects.done(sent.to), as_handled)),
    ]
    best: Outcome | BusError = Outcome()
    try:
        async with asyncio.timeout(timeout_s):
            best = await arrived.get()
        if isinstance(best, Outcome) and best.reply is None:
            # A reply comes from another stream than the completion or the dead letter; taken, it leaves nothing behind.
            async with asyncio.timeout(REPLY_AFTER_COMPLETION_S):
                then = await arrived.get()
            if isinstance(then, Outcome):
                best = Outcome(then.reply or best.reply, best.dead or then.dead, best.is_handled or then.is_handled)
    except TimeoutError:
        pass
    finally:
        await end(*tasks)
    if isinstance(best, BusError):
        raise best
    return best
