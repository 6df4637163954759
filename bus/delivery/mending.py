"""What a person can do about dead letters: send them again, edit them, drop them (DEL-4)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from bus.broker.messages import delete_message, get_message
from bus.broker.store import store
from bus.delivery.dead_letters import DeadLetters
from bus.delivery.letter import (
    ATTEMPTS,
    OBJECT,
    ORIGINAL_OBJECT,
    DeadLetter,
    NoSuchDeadLetter,
    own_headers,
    story_of_edit,
)
from bus.envelope import Envelope
from bus.envelope.grammar import malformed
from bus.errors import BusError, ErrorInfo, Rejected, error

RETRIES_PER_S = 50.0


@dataclass(frozen=True, slots=True)
class Retry:
    """A dead letter that was sent again. `is_repeat`: an earlier try had sent it and not come to remove it."""

    id: int
    message_id: str | None
    subject: str
    seq: int
    is_repeat: bool


@dataclass(frozen=True, slots=True)
class NotRetried:
    """A dead letter of a mass retry that stays where it is, and why."""

    id: int
    problem: ErrorInfo


class Mending(DeadLetters):
    """The dead letters of a bus, with what a person can do about them."""

    async def retry(self, id: int) -> Retry:
        """Sends the message of a letter again, as it is, and removes the letter once the broker has the message.

        It keeps its ids, causation and trace headers; `Message.attempt` goes on from the letter's attempts, while the
        retry policy starts anew. If it fails again it becomes a new letter. Repeated after a crash or a lost answer it
        counts once: by its `Nats-Msg-Id` within two minutes, later by dedupe. Raises NoSuchDeadLetter; Rejected
        when the message's bytes are gone or its subject is not one of this agent's work subjects; BrokerError,
        and then the letter is still there.
        """
        letter = await self._letter(id)
        subject = self._work_subject(letter)
        headers = own_headers(letter)
        if letter.attempts:
            headers[ATTEMPTS] = str(letter.attempts)
        # With the time, because ids begin anew when somebody deletes the stream, and a false duplicate is a lost
        # message.
        headers["Nats-Msg-Id"] = f"retry:{id}:{letter.stored_at.isoformat()}"
        stored = await store(
            self._connection,
            subject,
            letter.data,
            headers,
            timeout_s=self._connection.settings.publish_timeout_s,
        )
        await delete_message(self._connection, self._stream, id)
        envelope = letter.envelope()
        return Retry(id, envelope.message_id if envelope is not None else None, subject, stored.seq, stored.duplicate)

    async def retry_each(
        self, ids: Iterable[int], *, per_second: float = RETRIES_PER_S
    ) -> AsyncIterator[Retry | NotRetried]:
        """Retries many, at most `per_second`, in their order; yields what became of each.

        What somebody else retried, edited or dropped meanwhile is passed over. It can be ended at any point and begun
        again: what was retried is gone from the letters. Raises BrokerError when the broker takes no more.
        """
        due = time.monotonic()
        for id in ids:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due = max(due, time.monotonic()) + 1 / per_second
            try:
                yield await self.retry(id)
            except NoSuchDeadLetter:
                continue
            except Rejected as problem:
                yield NotRetried(id, problem.info)

    async def edit(self, id: int, data: bytes) -> int:
        """Replaces a letter by one with these bytes, and returns the new letter's id.

        The bytes of the first original stay findable: `original`. Raises NoSuchDeadLetter; Rejected with
        `details.path` when the bytes are no envelope, or not one from this letter's sender to its agent (a person
        mends messages, and does not write them in another's name); BrokerError. In each case the letter stays.
        """
        letter = await self._letter(id)
        envelope = Envelope.decode(data)
        try:
            origin = self._connection.subjects.parse_work(letter.origin_subject)
        except Rejected:
            raise malformed("$", "sent to a work subject", letter.origin_subject) from None
        if envelope.sender != origin.sender:
            raise malformed("from", f"{origin.sender!r}, the name that it was published under", envelope.sender)
        if envelope.to != letter.agent:
            raise malformed("to", f"{letter.agent!r}, the agent that could not handle it", envelope.to)
        original = letter.headers.get(ORIGINAL_OBJECT) or letter.headers.get(OBJECT) or await self._keep(letter.data)
        subject = self._connection.subjects.work(letter.agent, origin.lane, origin.sender, envelope.type)
        headers = story_of_edit(letter, subject=subject, original_object=original)
        headers["Nats-Msg-Id"] = f"edit:{id}:{letter.stored_at.isoformat()}"
        stored = await self._store(letter.agent, letter.code, data, headers)
        if stored.duplicate:
            # Our own request whose answer was lost, or somebody else's edit of the same letter.
            theirs = await get_message(self._connection, self._stream, stored.seq)
            if theirs is None or (await self.read(theirs)).data != data:
                raise NoSuchDeadLetter(id)
        await delete_message(self._connection, self._stream, id)
        return stored.seq

    async def drop(self, id: int) -> None:
        """Removes a letter for good. Raises NoSuchDeadLetter, BrokerError."""
        await self._letter(id)
        await delete_message(self._connection, self._stream, id)

    async def original(self, letter: DeadLetter) -> bytes | None:
        """The bytes as they arrived, before any edit; None when they have been forgotten. Raises BrokerError."""
        if ORIGINAL_OBJECT not in letter.headers:
            return letter.data if letter.is_whole else None
        return await self._objects.get(letter.headers[ORIGINAL_OBJECT])

    async def _letter(self, id: int) -> DeadLetter:
        letter = await self.get(id)
        if letter is None:
            raise NoSuchDeadLetter(id)
        return letter

    def _work_subject(self, letter: DeadLetter) -> str:
        """Where it is sent again. What stands in a letter must not make a person send to anybody else."""
        if not letter.is_whole:
            raise _cannot(letter, "its bytes were kept as an object, which has been forgotten; drop it")
        subject = self._connection.subjects.again(letter.agent, letter.origin_subject)
        if subject is None:
            raise _cannot(letter, f"{letter.origin_subject!r} is no work subject of {letter.agent}; drop it")
        return subject


def _cannot(letter: DeadLetter, why: str) -> BusError:
    return error("protocol.malformed", f"dead letter {letter.id} cannot be sent again: {why}", path="$")
