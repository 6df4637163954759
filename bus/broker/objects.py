"""Objects: byte strings of any size in an object store, under names that never change their content."""

from __future__ import annotations

import base64
import hashlib

import nats.js.errors
from nats.js.object_store import ObjectStore

from bus.broker.connection import Connection
from bus.broker.reader import StreamReader
from bus.broker.translate import translated
from bus.errors import error

READ_ATTEMPTS = 3


class Objects:
    """One object store. Names are content hashes, so nothing is ever overwritten under a reader."""

    __slots__ = ("_bucket", "_connection")

    def __init__(self, connection: Connection, bucket: str) -> None:
        self._connection = connection
        self._bucket = bucket

    async def put(self, name: str, data: bytes) -> None:
        """Stores `data` under `name`; does nothing when the name exists. Raises BrokerError."""

        async def attempt() -> None:
            with translated(f"store {self._bucket}/{name}"):
                store = self._store()
                try:
                    await store.get_info(name)
                except nats.js.errors.NotFoundError:
                    await store.put(name, data)

        await self._connection.patiently(attempt)

    async def get(self, name: str, *, max_bytes: int | None = None) -> bytes | None:
        """The bytes under `name`, or None.

        Raises BrokerError; not retryable when the stored bytes are damaged. Raises `protocol.too_large` over
        `max_bytes`, before it fetches anything.
        """
        return await self._connection.patiently(lambda: self._read(name, max_bytes))

    async def _read(self, name: str, max_bytes: int | None) -> bytes | None:
        for _ in range(READ_ATTEMPTS):
            with translated(f"fetch {self._bucket}/{name}"):
                try:
                    found = await self._store().get_info(name)
                except nats.js.errors.NotFoundError:
                    return None
            if max_bytes is not None and (found.size or 0) > max_bytes:
                raise error(
                    "protocol.too_large",
                    f"{self._bucket}/{name} has {found.size} bytes, the limit is {max_bytes}",
                    size=found.size,
                    limit=max_bytes,
                )
            data = await self._chunks(found.nuid or "") if found.size else b""
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
            if found.digest == f"SHA-256={digest}":
                return data
            # Two writers may have stored the same name at once: the later one replaces the chunks.
        raise error(
            "broker.unavailable", f"{self._bucket}/{name} is damaged: its SHA-256 does not match", retryable=False
        )

    async def _chunks(self, nuid: str) -> bytes:
        subject = f"$O.{self._bucket}.C.{nuid}"
        # nats-py reads objects through a push consumer that waits for ever when the server restarts.
        async with StreamReader(self._connection, f"OBJ_{self._bucket}", subjects=[subject], start_seq=1) as reader:
            return b"".join([delivery.data async for delivery in reader.until_now()])

    def _store(self) -> ObjectStore:
        return ObjectStore(name=self._bucket, stream=f"OBJ_{self._bucket}", js=self._connection.jetstream())
