"""Records: values in a key-value bucket, changed by compare-and-set, with a lifetime and the name of who wrote them.

Published and read directly: nats-py's own bucket costs twice as much a write, drops the lifetime of an entry on update
(which would make a lease permanent), and does not tell who wrote what a write lost to.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from bus.broker.connection import Connection
from bus.broker.parser import read_header_block
from bus.broker.pull import Delivery
from bus.broker.reader import StreamReader
from bus.broker.wire import header_block
from bus.errors import error

API_S = 5.0
WRONG_LAST_SEQUENCE = 10071
NO_MESSAGE = 10037
DELETED = "KV-Operation"
WRITER = "Bus-Writer"


@dataclass(frozen=True, slots=True)
class Record:
    """One value of a key. Revision 0: the key was never there; a value of None with another one: it was taken away."""

    value: bytes | None
    revision: int
    writer: str = ""
    written_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Write:
    """One write. `after`: only when the key's newest revision is that one (0: there is none)."""

    key: str
    value: bytes
    after: int


NOTHING = Record(None, 0)


class Records:
    """One bucket. Every call raises BrokerError when the broker cannot answer.

    `writer` stands beside each value: the connection when none is given; with an empty one nothing does, as for leases,
    whose keys name who holds them.
    """

    __slots__ = ("_bucket", "_writer", "connection")

    def __init__(self, connection: Connection, bucket: str, *, writer: str | None = None) -> None:
        self.connection = connection
        self._bucket = bucket
        self._writer = connection.name if writer is None else writer

    @property
    def stream(self) -> str:
        """The stream behind the bucket, for readers."""
        return f"KV_{self._bucket}"

    def subject(self, key: str) -> str:
        """The subject of a key, or of a pattern of keys."""
        return f"$KV.{self._bucket}.{key}"

    def key(self, delivery: Delivery) -> str:
        """The key that a delivery of the stream is about."""
        return delivery.subject.removeprefix(self.subject(""))

    async def read(self, key: str) -> Record:
        """The newest value of a key; `NOTHING` when it was never there, or its lifetime is over.

        Waits for a broker that is away.
        """
        return await self.connection.patiently(lambda: self.read_once(key))

    async def read_once(self, key: str) -> Record:
        """As `read`, but fails at once while the broker is away."""
        stored = await self._api({"last_by_subj": self.subject(key)})
        if stored is None:
            return NOTHING
        headers = _headers_of(stored)
        value = None if DELETED in headers else b64decode(stored.get("data", ""))
        return Record(value, stored["seq"], headers.get(WRITER, ""), datetime.fromisoformat(stored["time"]))

    async def write(self, key: str, value: bytes, *, after: int | None, ttl_s: float | None = None) -> int | None:
        """Writes when the key's newest revision is `after` (0: there is none) and returns the new revision, else None.

        With `after=None` it writes in any case. It lives for `ttl_s` (whole seconds, at least 1; None: for good). When
        the answer is lost it raises BrokerError `broker.unavailable`: the write may have happened.
        """
        return await self._publish(key, value, {}, after, ttl_s)

    async def newest(self, pattern: str) -> int:
        """The newest revision of all keys that fit, 0 without one. For `write_while`."""

        async def attempt() -> int:
            found = await self._api({"last_by_subj": self.subject(pattern)})
            return 0 if found is None else int(found["seq"])

        return await self.connection.patiently(attempt)

    async def write_while(self, pattern: str, newest: int, key: str, value: bytes) -> int | None:
        """Writes when nothing that fits has changed since `newest`; the key must fit too. Needs nats-server 2.12.

        Returns and raises as `write`.
        """
        headers = self._headers({}, newest, None)
        headers["Nats-Expected-Last-Subject-Sequence-Subject"] = self.subject(pattern)
        return await self._ask(key, value, headers)

    async def keys(self, pattern: str) -> list[str]:
        """The keys that fit, in no order, also those that were taken away just now."""
        found: list[str] = []
        subject, first = f"$JS.API.STREAM.INFO.{self.stream}", len(self.subject(""))
        while True:
            query = orjson.dumps({"subjects_filter": self.subject(pattern), "offset": len(found)})
            read = orjson.loads((await self.connection.request(subject, query, timeout_s=API_S)).data)
            if "error" in read:
                raise self._refused("list", pattern, read["error"])
            subjects = read["state"].get("subjects") or {}
            found += [one[first:] for one in subjects]
            if len(found) >= read.get("total", 0) or not subjects:
                return found

    async def take_away(self, key: str, *, after: int | None = None, ttl_s: float | None = None) -> int | None:
        """Ends a value in the eyes of readers; the note of that lives for `ttl_s`. Returns and raises as `write`."""
        return await self._publish(key, b"", {DELETED: "DEL"}, after, ttl_s)

    def reader(self, pattern: str, *, start_seq: int = 1, since: datetime | None = None) -> StreamReader:
        """A reader of the newest values of the keys that fit, written `since` then, and of what is written later."""
        subjects, first = [self.subject(pattern)], None if since is not None else start_seq
        return StreamReader(self.connection, self.stream, subjects=subjects, start_seq=first, start_time=since)

    def entry(self, delivery: Delivery) -> tuple[str, Record]:
        """The key and the record of what a reader gave."""
        value = None if DELETED in delivery.headers else delivery.data
        return self.key(delivery), Record(
            value, delivery.stream_seq, delivery.headers.get(WRITER, ""), delivery.stored_at
        )

    async def first_key(self, pattern: str) -> str | None:
        """The key that was written first of those that fit and are there; None when there is none."""
        seq = 1
        while True:
            answer = await self._api({"seq": seq, "next_by_subj": self.subject(pattern)})
            if answer is None:
                return None
            if DELETED not in _headers_of(answer):
                return str(answer["subject"]).removeprefix(self.subject(""))
            seq = answer["seq"] + 1

    async def entries(self, pattern: str) -> AsyncIterator[tuple[str, Record]]:
        """The keys that fit and their records, without what was taken away, in the order of writing."""
        async with self.reader(pattern) as reader:
            async for delivery in reader.until_now():
                key, record = self.entry(delivery)
                if record.value is not None:
                    yield key, record

    async def _api(self, query: dict[str, Any]) -> dict[str, Any] | None:
        """Asks for one stored message; None when there is none."""
        subject = f"$JS.API.STREAM.MSG.GET.{self.stream}"
        read = orjson.loads((await self.connection.request(subject, orjson.dumps(query), timeout_s=API_S)).data)
        if "error" not in read:
            found: dict[str, Any] = read["message"]
            return found
        if read["error"].get("err_code") == NO_MESSAGE:
            return None
        raise self._refused("read", str(query), read["error"])

    async def _publish(
        self, key: str, value: bytes, headers: dict[str, str], after: int | None, ttl_s: float | None
    ) -> int | None:
        return await self._ask(key, value, self._headers(headers, after, ttl_s))

    def _headers(self, headers: dict[str, str], after: int | None, ttl_s: float | None) -> dict[str, str]:
        headers = {**headers, WRITER: self._writer} if self._writer else headers.copy()
        if ttl_s is not None:
            headers["Nats-TTL"] = str(max(1, round(ttl_s)))
        if after is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(after)
        return headers

    async def _ask(self, key: str, value: bytes, headers: dict[str, str]) -> int | None:
        answer = await self.connection.request(self.subject(key), value, headers=header_block(headers), timeout_s=API_S)
        read = orjson.loads(answer.data)
        if "error" not in read:
            return int(read["seq"])
        if read["error"].get("err_code") == WRONG_LAST_SEQUENCE:
            return None
        raise self._refused("write", key, read["error"])

    def _refused(self, verb: str, key: str, problem: dict[str, Any]) -> Exception:
        return error(
            "broker.unavailable",
            f"{verb} {self._bucket}/{key}: {problem.get('description')}",
            retryable=problem.get("code") == 503,
            server_error=problem.get("err_code"),
        )


def _headers_of(stored: dict[str, Any]) -> dict[str, str]:
    return read_header_block(b64decode(stored["hdrs"])) if "hdrs" in stored else {}
