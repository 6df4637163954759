"""Single messages of a stream: fetched and taken out by their sequence."""

from __future__ import annotations

import asyncio
import base64
import time
from datetime import datetime
from typing import Any

import orjson

from bus.broker.connection import Connection
from bus.broker.parser import read_header_block
from bus.broker.pull import NANOSECONDS, Delivery
from bus.errors import BusError, error

API_S = 5.0
RETRY_S = 0.25
MAX_SEQ = 2**63 - 1

# What the server says of a sequence that was never used, or is used no more. A failed deletion has one number for
# every reason; the reason is text.
_NO_MESSAGE = {10037, 10043}
_DELETE_FAILED = 10057
_GONE = {"no message found", "deleted message", "stream store EOF"}


async def get_message(connection: Connection, stream: str, seq: int) -> Delivery | None:
    """One stored message, or None when it is not there (any more).

    It is nobody's delivery: `reply` is empty and `attempt` is 0. Raises BrokerError.
    """
    if not 0 < seq <= MAX_SEQ:
        return None
    found = await _ask(connection, "GET", stream, {"seq": seq})
    if found is None:
        return None
    stored = found["message"]
    # nats-py's own reader of these headers damages values that are not ASCII.
    headers = read_header_block(base64.b64decode(stored["hdrs"])) if "hdrs" in stored else {}
    stored_us = round(datetime.fromisoformat(stored["time"]).timestamp() * 1_000_000)
    data = base64.b64decode(stored.get("data", ""))
    return Delivery(stored["subject"], data, headers, "", seq, 0, stored_us * (NANOSECONDS // 1_000_000), 0)


async def delete_message(connection: Connection, stream: str, seq: int) -> bool:
    """Takes one message out of a stream; False when it was gone already. Raises BrokerError.

    After a lost answer it asks again, so False may also mean that its own first request did it.
    """
    return 0 < seq <= MAX_SEQ and await _ask(connection, "DELETE", stream, {"seq": seq}) is not None


async def first_of(connection: Connection, stream: str, subject: str) -> int | None:
    """The sequence of the first message of a stream whose subject fits; None when there is none. Raises BrokerError."""
    found = await _ask(connection, "GET", stream, {"seq": 1, "next_by_subj": subject})
    return None if found is None else int(found["message"]["seq"])


async def _ask(connection: Connection, verb: str, stream: str, query: dict[str, Any]) -> dict[str, Any] | None:
    """Asks until `publish_timeout_s`; None when there is no such message."""
    deadline = time.monotonic() + connection.settings.publish_timeout_s
    while True:
        try:
            await connection.wait_connected(max(0.0, deadline - time.monotonic()))
            answer = await connection.request(
                f"$JS.API.STREAM.MSG.{verb}.{stream}", orjson.dumps(query), timeout_s=API_S
            )
            read: dict[str, Any] = orjson.loads(answer.data)
            if "error" not in read:
                return read
            number, text = read["error"].get("err_code"), read["error"].get("description", "")
            if number in _NO_MESSAGE or (number == _DELETE_FAILED and text in _GONE):
                return None
            problem = error(
                "broker.unavailable",
                f"message {query['seq']} of the stream {stream}: {text}",
                retryable=read["error"].get("code") == 503,
                server_error=number,
            )
        except BusError as found:
            problem = found
        if not problem.info.retryable:
            raise problem
        if time.monotonic() + RETRY_S >= deadline:
            raise problem
        await asyncio.sleep(RETRY_S)
