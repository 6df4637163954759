"""Entries with a lifetime in a key-value bucket, changed by compare-and-set.

nats-py's own update drops the lifetime of an entry, which would make a lease permanent, and gives none on request.
"""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass

import orjson

from bus.broker.connection import Connection
from bus.broker.parser import read_header_block
from bus.broker.pull import Delivery
from bus.broker.wire import header_block
from bus.errors import error

API_S = 5.0
WRONG_LAST_SEQUENCE = 10071
NO_MESSAGE = 10037
DELETED = "KV-Operation"


@dataclass(frozen=True, slots=True)
class Entry:
    """One value and its revision. A revision without a value stands for an entry that was taken away."""

    value: bytes | None
    revision: int


NOTHING = Entry(None, 0)


class Leases:
    """One bucket. Every call raises BrokerError when the broker cannot answer, once and without trying again."""

    __slots__ = ("_bucket", "_connection")

    def __init__(self, connection: Connection, bucket: str) -> None:
        self._connection = connection
        self._bucket = bucket

    @property
    def stream(self) -> str:
        """The stream behind the bucket, for readers."""
        return f"KV_{self._bucket}"

    def subject(self, key: str) -> str:
        """The subject of a key, or of a pattern of keys."""
        return f"$KV.{self._bucket}.{key}"

    def key(self, delivery: Delivery) -> str:
        """The key that a delivery of the stream is about."""
        return delivery.subject.removeprefix(f"$KV.{self._bucket}.")

    async def read(self, key: str) -> Entry:
        """The newest entry of a key; `NOTHING` when it was never there, or has expired."""
        request = orjson.dumps({"last_by_subj": self.subject(key)})
        answer = await self._connection.request(f"$JS.API.STREAM.MSG.GET.{self.stream}", request, timeout_s=API_S)
        read = orjson.loads(answer.data)
        if "error" in read:
            if read["error"].get("err_code") == NO_MESSAGE:
                return NOTHING
            raise self._refused("read", key, read["error"])
        stored = read["message"]
        headers = read_header_block(b64decode(stored["hdrs"])) if "hdrs" in stored else {}
        return Entry(None if DELETED in headers else b64decode(stored.get("data", "")), stored["seq"])

    async def put(self, key: str, value: bytes, *, ttl_s: float, after: int | None) -> int | None:
        """Writes an entry that lives for `ttl_s` (whole seconds, at least 1) and returns its revision.

        `after`: only when the newest revision of the key is that one (0: there is none); None means that it is not.
        """
        return await self._publish(key, value, {}, ttl_s, after)

    async def take_away(self, key: str, *, ttl_s: float, after: int | None = None) -> bool:
        """Ends an entry at once, in the eyes of readers too; the note of that lives for `ttl_s`."""
        return await self._publish(key, b"", {DELETED: "DEL"}, ttl_s, after) is not None

    async def _publish(
        self, key: str, value: bytes, headers: dict[str, str], ttl_s: float, after: int | None
    ) -> int | None:
        headers = {**headers, "Nats-TTL": str(max(1, round(ttl_s)))}
        if after is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(after)
        answer = await self._connection.request(
            self.subject(key), value, headers=header_block(headers), timeout_s=API_S
        )
        read = orjson.loads(answer.data)
        if "error" not in read:
            return int(read["seq"])
        if read["error"].get("err_code") == WRONG_LAST_SEQUENCE:
            return None
        raise self._refused("write", key, read["error"])

    def _refused(self, verb: str, key: str, problem: dict[str, object]) -> Exception:
        return error(
            "broker.unavailable",
            f"{verb} {self._bucket}/{key}: {problem.get('description')}",
            retryable=problem.get("code") == 503,
            server_error=problem.get("err_code"),
        )
