"""Storing a message in a stream: publish, wait for the server's answer, try again until the deadline."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping

import orjson

from bus.broker.connection import Connection
from bus.broker.wire import header_block
from bus.errors import BrokerError, BusError, error

ATTEMPT_S = 5.0
RETRY_S = 0.1

# So begins every answer that is no error.
_IS_STORED = b'{"stream":'
# Error codes of the server's publish answer.
_FULL = {10023, 10047, 10077, 10167, 10169}
_TOO_LARGE = {10054, 10097}


class Stored:
    """The server's answer: it has the message."""

    __slots__ = ("_answer",)

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    @property
    def seq(self) -> int:
        """Its number in the stream."""
        return int(orjson.loads(self._answer)["seq"])

    @property
    def duplicate(self) -> bool:
        """The server had this `Nats-Msg-Id` already and stored nothing new."""
        return b'"duplicate"' in self._answer and bool(orjson.loads(self._answer)["duplicate"])


async def store(
    connection: Connection, subject: str, data: bytes, headers: Mapping[str, str], *, timeout_s: float
) -> Stored:
    """Stores one message and returns once the server has confirmed it; see `store_block`."""
    return await store_block(connection, subject, data, header_block(headers) if headers else b"", timeout_s=timeout_s)


async def store_block(connection: Connection, subject: str, data: bytes, headers: bytes, *, timeout_s: float) -> Stored:
    """Stores one message, its headers given as they stand on the wire.

    Tries again after a lost answer, a missing leader or a broken link, until `timeout_s`; give it a stable
    `Nats-Msg-Id` so that the tries count once. Raises `broker.unavailable` at the deadline (the message may or may
    not be stored), `broker.full` when the stream refuses it, `protocol.too_large` over the server's limit.
    """
    size = len(data) + len(headers)
    if size > connection.max_message_bytes:
        raise error(
            "protocol.too_large",
            f"the message for {subject} has {size} bytes, the limit is {connection.max_message_bytes}; "
            "put the content into an artifact and send its reference",
            size=size,
            limit=connection.max_message_bytes,
        )
    deadline = time.monotonic() + timeout_s
    delay_s, attempt_s = RETRY_S, min(ATTEMPT_S, timeout_s)
    while True:
        try:
            if not connection.is_connected:
                await connection.wait_connected(max(0.0, deadline - time.monotonic()))
            answer = await connection.ask(subject, data, headers=headers, timeout_s=attempt_s)
            return _read(answer.data, subject)
        except BrokerError as problem:
            if not problem.info.retryable or problem.info.code != "broker.unavailable":
                raise
            if time.monotonic() + delay_s >= deadline:
                raise _late(problem, subject, timeout_s) from problem
        await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
        delay_s = min(2.0, delay_s * 2)
        attempt_s = min(ATTEMPT_S, max(0.05, deadline - time.monotonic()))


def _read(data: bytes, subject: str) -> Stored:
    if data.startswith(_IS_STORED):
        return Stored(data)
    answer = orjson.loads(data)
    if "error" not in answer:
        return Stored(data)
    number, text = answer["error"].get("err_code", 0), answer["error"].get("description", "")
    if number in _FULL:
        raise error(
            "broker.full",
            f"the stream refuses {subject}: {text}; consume or raise its limit",
            server_error=number,
        )
    if number in _TOO_LARGE:
        raise error("protocol.too_large", f"the stream refuses {subject}: {text}", server_error=number)
    raise error(
        "broker.unavailable",
        f"the stream refuses {subject}: {text}",
        retryable=answer["error"].get("code") == 503,
        server_error=number,
    )


def _late(problem: BusError, subject: str, timeout_s: float) -> BusError:
    return error(
        "broker.unavailable",
        f"{subject} was not confirmed within {timeout_s:.0f} s ({problem.info.message}); it is safe to send again "
        "with the same message id",
    )
