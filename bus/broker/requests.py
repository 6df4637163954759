"""Requests over one long-lived inbox.

nats-py subscribes and waits per request; here one wildcard subscription takes all answers, integer tokens
pair them, and one sweep ends those that are late. When the link breaks, requests in flight fail at once
instead of running into their timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bus.broker.parser import Arrival
from bus.broker.wire import publish_command
from bus.errors import BusError, error

SWEEP_S = 0.1

Post = Callable[[bytes], None]


class Flight:
    """A handle on one request, for whoever learns that no answer will come."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[Arrival] | None = None

    def fail(self, problem: BusError) -> None:
        """Ends the request with an error; does nothing when it is not in flight."""
        if self.future is not None and not self.future.done():
            self.future.set_exception(problem)


class Requests:
    """Pairs answers with requests. Owned by the connection, which feeds `answer` and calls `fail_all`."""

    __slots__ = ("_loop", "_next", "_pending", "_post", "_prefix", "_sweep_handle")

    def __init__(self, inbox: str, post: Post) -> None:
        self._prefix = inbox
        self._post = post
        self._pending: dict[str, tuple[asyncio.Future[Arrival], float]] = {}
        self._next = 0
        self._loop = asyncio.get_running_loop()
        self._sweep_handle: asyncio.TimerHandle | None = None

    @property
    def pattern(self) -> str:
        """The subject to subscribe to."""
        return f"{self._prefix}.*"

    async def request(
        self, subject: str, data: bytes, headers: bytes, *, timeout_s: float, flight: Flight | None = None
    ) -> Arrival:
        """Sends one request and waits for the first answer.

        Raises BrokerError `broker.unavailable` after `timeout_s`, when nobody listens on the subject, or
        when the link breaks meanwhile. Whether the request took effect is then unknown.
        """
        self._next += 1
        number = str(self._next)
        future: asyncio.Future[Arrival] = self._loop.create_future()
        if flight is not None:
            flight.future = future
        self._pending[number] = (future, self._loop.time() + timeout_s)
        if self._sweep_handle is None:
            self._sweep_handle = self._loop.call_later(SWEEP_S, self._sweep)
        try:
            self._post(publish_command(subject, f"{self._prefix}.{number}", headers, data))
            message = await future
        finally:
            self._pending.pop(number, None)
        if not message.data and message.headers.get("Status") == "503":
            raise error("broker.unavailable", f"nobody answers on {subject}: no responders", reason="no_responders")
        return message

    def answer(self, message: Arrival) -> None:
        """Takes one answer from the inbox; unknown tokens are late answers and are ignored."""
        entry = self._pending.get(message.subject.rpartition(".")[2])
        if entry is not None and not entry[0].done():
            entry[0].set_result(message)

    def fail_all(self, reason: str) -> None:
        """Fails what is in flight, because its answers cannot arrive any more."""
        for future, _ in self._pending.values():
            if not future.done():
                future.set_exception(error("broker.unavailable", reason, reason="disconnected"))

    def _sweep(self) -> None:
        now = self._loop.time()
        for future, deadline in list(self._pending.values()):
            if deadline <= now and not future.done():
                future.set_exception(error("broker.unavailable", "no answer in time", reason="timeout"))
        self._sweep_handle = self._loop.call_later(SWEEP_S, self._sweep) if self._pending else None
