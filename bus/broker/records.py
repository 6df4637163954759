"""Records: JSON documents in a key-value bucket, changed by compare-and-set."""

from __future__ import annotations

from dataclasses import dataclass

import nats.errors
import nats.js.errors
from nats.js.kv import KeyValue

from bus.broker.connection import Connection
from bus.broker.translate import translated

WRONG_LAST_SEQUENCE = 10071


@dataclass(frozen=True, slots=True)
class Record:
    """One value and the revision that it has; revision 0 means that the key does not exist."""

    value: bytes
    revision: int


class Records:
    """One bucket. Every call raises BrokerError when the broker cannot answer."""

    __slots__ = ("_bucket", "_connection")

    def __init__(self, connection: Connection, bucket: str) -> None:
        self._connection = connection
        self._bucket = bucket

    async def read(self, key: str) -> Record:
        """The newest value of a key, or an empty record of revision 0."""

        async def attempt() -> Record:
            with translated(f"read {self._bucket}/{key}"):
                try:
                    entry = await self._store().get(key)
                except nats.js.errors.KeyNotFoundError:
                    return Record(b"", 0)
                return Record(entry.value or b"", entry.revision or 0)

        return await self._connection.patiently(attempt)

    async def write(self, key: str, value: bytes, *, after: int) -> int | None:
        """Writes when the key's revision is still `after` (0: does not exist); the new revision, None when it is not.

        When the answer is lost it raises BrokerError `broker.unavailable`: the write may have happened.
        """
        with translated(f"write {self._bucket}/{key}"):
            store = self._store()
            try:
                if after:
                    return await store.update(key, value, last=after)
                return await store.create(key, value)
            except nats.js.errors.KeyWrongLastSequenceError:
                return None
            except nats.js.errors.APIError as problem:
                if problem.err_code == WRONG_LAST_SEQUENCE:
                    return None
                raise

    def _store(self) -> KeyValue:
        js = self._connection.jetstream()
        return KeyValue(name=self._bucket, stream=f"KV_{self._bucket}", pre=f"$KV.{self._bucket}.", js=js, direct=False)
