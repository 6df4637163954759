"""Requests over one long-lived inbox.

nats-py subscribes and waits per request; here one wildcard subscription takes all answers, integer tokens
pair them, and one sweep ends those that are late. When the link breaks, requests in flight fail at once
instead of running into their timeout.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from bus.broker.parser import Arrival
from bus.broker.wire import post, post_at_once, publish_command
from bus.errors import error

if TYPE_CHECKING:
    from nats.aio.client import Client

SWEEP_S = 0.1


class Requests:
    """Pairs answers with requests. Owned by the connection, which feeds `answer`, calls `fail_all`, and says over
    which `client` they go.
    """

    __slots__ = ("_loop", "_next", "_pending", "_prefix", "_sweep_handle", "client")

    def __init__(self, client: Client) -> None:
        self.client = client
        self._prefix = client.new_inbox()
        self._pending: dict[str, tuple[asyncio.Future[Arrival], float, str]] = {}
        self._next = 0
        self._loop = asyncio.get_running_loop()
        self._sweep_handle: asyncio.TimerHandle | None = None

    @property
    def pattern(self) -> str:
        """The subject to subscribe to."""
        return f"{self._prefix}.*"

    def ask(self, subject: str, data: bytes, headers: bytes, *, timeout_s: float) -> asyncio.Future[Arrival]:
        """Sends one request; the future that it returns ends with the first answer.

        Its exception is BrokerError `broker.unavailable` after `timeout_s`, when nobody listens on the subject, or
        when the link breaks meanwhile; whether the request took effect is then unknown. The same is raised when it
        cannot be sent.
        """
        self._next += 1
        inbox = f"{self._prefix}.{self._next}"
        command = publish_command(subject, inbox, headers, data)
        if self._pending:
            post(self.client, command)
        else:
            post_at_once(self.client, command)
        future: asyncio.Future[Arrival] = asyncio.Future(loop=self._loop)
        self._pending[inbox] = (future, time.monotonic() + timeout_s, subject)
        if self._sweep_handle is None:
            self._sweep_handle = self._loop.call_later(SWEEP_S, self._sweep)
        return future

    def answer(self, message: Arrival) -> None:
        """Takes one answer from the inbox; those that nobody waits for any more are ignored."""
        entry = self._pending.pop(message.subject, None)
        if entry is None or entry[0].done():
            return
        future, _, subject = entry
        if not message.data and message.headers.get("Status") == "503":
            why = f"nobody answers on {subject}: no responders"
            future.set_exception(error("broker.unavailable", why, reason="no_responders"))
        else:
            future.set_result(message)

    def fail_all(self, reason: str) -> None:
        """Fails what is in flight, because its answers cannot arrive any more."""
        pending, self._pending = self._pending, {}
        for future, _, _ in pending.values():
            if not future.done():
                future.set_exception(error("broker.unavailable", reason, reason="disconnected"))

    def _sweep(self) -> None:
        now = time.monotonic()
        for inbox, (future, deadline, _) in list(self._pending.items()):
            if future.done():
                del self._pending[inbox]  # Whoever waited gave up.
            elif deadline <= now:
                del self._pending[inbox]
                future.set_exception(error("broker.unavailable", "no answer in time", reason="timeout"))
        self._sweep_handle = self._loop.call_later(SWEEP_S, self._sweep) if self._pending else None
