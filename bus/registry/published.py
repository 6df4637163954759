"""Published contracts: the bucket `bus_contracts`, where what is once written stays as it is (SCH-1)."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime

import orjson

from bus.broker.connection import Connection
from bus.broker.pull import Delivery
from bus.broker.reader import StreamReader
from bus.broker.records import DELETED, Records
from bus.broker.streams import StreamNames
from bus.contracts.version import ContractVersion
from bus.errors import error

log = logging.getLogger("bus.registry")


@dataclass(frozen=True, slots=True)
class Published:
    """One published contract: its version, its bytes with LF line ends, and when the broker took it."""

    version: ContractVersion
    data: bytes
    stored_at: datetime

    @property
    def sha256(self) -> str:
        """The digest of the bytes, in lower-case hex; that of `schemas/lock.json`."""
        return hashlib.sha256(self.data).hexdigest()


class PublishedContracts:
    """The contracts that this bus knows. Every call raises BrokerError when the broker cannot answer."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._records = Records(connection, StreamNames.of(connection.settings.namespace).contracts)

    async def publish(self, version: ContractVersion, data: bytes) -> bool:
        """Publishes a contract, the bytes of a JSON Schema file; True when it is new, False when it was there already.

        Line ends count as LF. Safe to repeat and to call from several places at once. Raises RegistryError
        `registry.invalid_card` for bytes that are no schema, and for a version that is published with another content:
        it is never overwritten; `protocol.too_large` beyond the broker's limit.
        """
        data = data.replace(b"\r\n", b"\n")
        try:
            is_schema = isinstance(orjson.loads(data), dict | bool)
        except orjson.JSONDecodeError:
            is_schema = False
        if not is_schema:
            raise error("registry.invalid_card", f"{version} is not a JSON Schema: an object, true or false")
        if len(data) > self._connection.max_message_bytes:
            raise error(
                "protocol.too_large",
                f"{version} has {len(data)} bytes, the limit is {self._connection.max_message_bytes}; split it",
                size=len(data),
                limit=self._connection.max_message_bytes,
            )

        async def create() -> int | None:
            return await self._records.write(_key(version), data, after=0)

        # A lost answer is asked for again; then it may find its own.
        if await self._connection.patiently(create):
            return True
        there = await self._records.read(_key(version))
        if there.value != data:
            theirs, ours = (hashlib.sha256(one).hexdigest()[:12] for one in (there.value or b"", data))
            raise error(
                "registry.invalid_card",
                f"{version} is published with another content (sha256 {theirs}..., this one is {ours}...); what is "
                "published never changes, so give it a new version",
                version=str(version),
            )
        return False

    async def get(self, version: ContractVersion) -> bytes | None:
        """The bytes of a published contract, None when it is not published."""
        return (await self._records.read(_key(version))).value

    async def list(self) -> list[Published]:
        """All published contracts, by type and version."""
        async with self._reader() as reader:
            found = [self._read(delivery) async for delivery in reader.until_now()]
        return sorted((one for one in found if one is not None), key=lambda one: one.version)

    async def follow(self) -> AsyncIterator[Published]:
        """All published contracts in the order of publication, then each new one, without end."""
        async with self._reader() as reader:
            async for delivery in reader:
                if (published := self._read(delivery)) is not None:
                    yield published

    def _reader(self) -> StreamReader:
        return self._records.reader(">")

    def _read(self, delivery: Delivery) -> Published | None:
        tokens = self._records.key(delivery).split(".")
        try:
            type, major, minor = tokens
            version = ContractVersion.of_type(type, f"{major}.{minor}")
        except ValueError:
            log.debug("%s is no contract and is ignored", delivery.subject)
            return None
        return None if DELETED in delivery.headers else Published(version, delivery.data, delivery.stored_at)


def _key(version: ContractVersion) -> str:
    return f"{version.type}.{version.major}.{version.minor}"
