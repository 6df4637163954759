"""Replays: the same idempotency key gets the stored result, from every replica, for a window (TOOL-5)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson

from bus.broker.connection import Connection
from bus.broker.records import Records
from bus.broker.streams import StreamNames
from bus.calls.asked import Asked
from bus.calls.control import Presence, Verb, Word, presence
from bus.errors import BrokerError, error

log = logging.getLogger("bus.calls")

CLAIM_MARGIN_S = 30.0
FIRST_LOOK_S = 0.02
SLOWEST_LOOK_S = 0.5
MAX_STORED_BYTES = 900 * 1024


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to do the work of one key, or the result of who did it before."""

    key: str
    revision: int
    stored: dict[str, Any] | None = None


class Replays:
    """The keys of one agent. A key belongs to one caller and one capability, and to the arguments that it came with."""

    def __init__(self, connection: Connection, agent: str, instance: str) -> None:
        settings = connection.settings
        self._connection = connection
        self._records = Records(connection, StreamNames.of(settings.namespace).results, writer="")
        self._agent = agent
        self._instance = instance
        self._window_s = settings.idempotency_window_s

    async def once(
        self,
        key: str,
        sender: str,
        asked: Asked,
        ends_at: float,
        meta: dict[str, Any],
        perform: Callable[[], Awaitable[Any]],
    ) -> Any:
        """Performs what its key has not done before; else gives what it came to, and its `meta`. Errors as `claim`."""
        claim: Claim | None = await self.claim(
            sender=sender,
            capability=asked.tool_name,
            key=key,
            arguments=asked.arguments,
            tool_call_id=asked.tool_call_id,
            ends_at=ends_at,
        )
        assert claim is not None
        if claim.stored is not None:
            meta.update({name: value for name, value in claim.stored["meta"].items() if name != "trace_id"})
            meta["replayed"] = True
            return claim.stored["data"]
        try:
            data = await perform()
            await self.store(claim, {"data": data, "meta": dict(meta)}, asked.arguments)
            claim = None
            return data
        finally:
            if claim is not None:
                await asyncio.shield(self.release(claim))

    async def claim(
        self, *, sender: str, capability: str, key: str, arguments: Any, tool_call_id: str, ends_at: float
    ) -> Claim:
        """Claims the key, or waits for who has it, until the monotonic time `ends_at`.

        A claim of a replica that is gone is taken over. Raises `agent.busy` when somebody else still has it then,
        `tool.validation_failed` for a key that came with other arguments before, and BrokerError.
        """
        name = hashlib.sha256(f"{sender}\0{capability}\0{key}".encode("utf-8", "surrogatepass")).hexdigest()
        where = f"{self._agent}.{name}"
        digest = hashlib.sha256(orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS)).hexdigest()
        mine = orjson.dumps(
            {
                "state": "claimed",
                "arguments": digest,
                "instance": self._instance,
                "sender": sender,
                "call": tool_call_id,
            }
        )
        ttl_s = max(0.0, ends_at - time.monotonic()) + CLAIM_MARGIN_S
        pause_s = FIRST_LOOK_S
        after = 0
        while True:
            revision = await self._records.write(where, mine, ttl_s=ttl_s, after=after)
            if revision is not None:
                return Claim(where, revision)
            entry = await self._records.read_once(where)
            after = entry.revision
            if entry.value is None:
                continue
            found = orjson.loads(entry.value)
            if found["arguments"] != digest:
                raise error(
                    "tool.validation_failed",
                    f"the idempotency key {key[:64]!r} came with other arguments before; use a new key for new work",
                    errors=[{"path": "extensions.idempotency_key", "problem": "came with other arguments before"}],
                )
            if found["state"] == "done":
                return Claim(where, entry.revision, found["result"])
            if await self._is_abandoned(found):
                log.warning("a keyed call of %s is taken over from a replica that is gone", capability)
                continue
            if time.monotonic() + pause_s >= ends_at:
                raise error(
                    "agent.busy",
                    f"the work of the idempotency key {key[:64]!r} is still being done; ask again later for its result",
                    started=False,
                    retry_after_ms=1000,
                )
            await asyncio.sleep(pause_s)
            pause_s, after = min(SLOWEST_LOOK_S, pause_s * 2), 0

    async def store(self, claim: Claim, result: dict[str, Any], arguments: Any) -> None:
        """Stores what a call came to. What cannot be stored is told in the log: a repeated key then runs again."""
        digest = hashlib.sha256(orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS)).hexdigest()
        value = orjson.dumps({"state": "done", "arguments": digest, "result": result})
        if len(value) > MAX_STORED_BYTES:
            log.warning("a result of %d bytes is too large to be kept under its idempotency key", len(value))
            return await self.release(claim)
        try:
            written = await self._records.write(claim.key, value, ttl_s=self._window_s, after=claim.revision)
            if written is None:
                log.warning("the claim of %s ran out before its result was stored", claim.key)
        except BrokerError as problem:
            log.warning("the result of %s is not stored, a repeated key may run again: %s", claim.key, problem)

    async def release(self, claim: Claim) -> None:
        """Gives the key back, because the work was not done."""
        try:
            await self._records.take_away(claim.key, ttl_s=1, after=claim.revision)
        except BrokerError as problem:
            log.warning("the claim of %s runs out by itself: %s", claim.key, problem)

    async def _is_abandoned(self, found: dict[str, Any]) -> bool:
        if found["instance"] == self._instance:
            return False
        word = Word(Verb.ALIVE, found["call"])
        said = await presence(self._connection, self._agent, found["instance"], word, sender=found["sender"])
        return said in (Presence.GONE, Presence.HAS_NOT)
