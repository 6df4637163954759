"""Published contracts, and what live agents say that they read (SCH-1, SCH-5)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from bus import Agent, Bus, RegistryError, Rejected, Settings
from bus.contracts.version import ContractVersion
from bus.registry.published import PublishedContracts
from bus.registry.readers import readers_of
from tests.integration.test_versions import Note, old_reader, peers_of, reader

NOTE_3 = ContractVersion("note", 3, 0)
SCHEMA = b'{"type": "object",\n"properties": {"heading": {"type": "string"}}}\n'


async def test_what_is_published_never_changes(bus: Bus) -> None:
    """SCH-1: the same again is fine, with any line ends; another content is refused."""
    contracts = PublishedContracts(bus.connection)
    assert await contracts.publish(NOTE_3, SCHEMA) is True
    assert await contracts.publish(NOTE_3, SCHEMA) is False
    assert await contracts.publish(NOTE_3, SCHEMA.replace(b"\n", b"\r\n")) is False
    with pytest.raises(RegistryError, match="never changes, so give it a new version") as refused:
        await contracts.publish(NOTE_3, b'{"type": "object"}')
    assert refused.value.info.code == "registry.invalid_card"
    assert await contracts.get(NOTE_3) == SCHEMA
    assert await contracts.get(ContractVersion("note", 3, 1)) is None
    await contracts.publish(ContractVersion("note", 10, 0), b"true")
    await contracts.publish(ContractVersion("a_note", 1, 0), b"{}")
    assert [str(one.version) for one in await contracts.list()] == ["a_note@1.0", "note@3.0", "note@10.0"]


async def test_of_many_who_publish_at_once_one_does(bus: Bus) -> None:
    contracts = PublishedContracts(bus.connection)
    same = await asyncio.gather(*[contracts.publish(NOTE_3, SCHEMA) for _ in range(8)])
    assert sorted(same) == [False] * 7 + [True]
    tries = [contracts.publish(ContractVersion("note", 4, 0), b'{"title": "%d"}' % n) for n in range(8)]
    different = await asyncio.gather(*tries, return_exceptions=True)
    assert different.count(True) == 1
    assert sum(isinstance(one, RegistryError) for one in different) == 7


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'"x"', b"7"])
async def test_what_is_no_schema_is_not_published(bus: Bus, data: bytes) -> None:
    with pytest.raises(RegistryError, match="not a JSON Schema"):
        await PublishedContracts(bus.connection).publish(NOTE_3, data)


async def test_a_schema_beyond_the_limit_is_refused(bus: Bus) -> None:
    with pytest.raises(Rejected, match="the limit is"):
        await PublishedContracts(bus.connection).publish(NOTE_3, orjson.dumps({"enum": ["x" * 2_000_000]}))


async def test_agents_hear_of_a_major_that_they_do_not_accept(
    bus: Bus, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """SCH-5: published before or after they start; what they accept, and other types, are no news."""
    contracts = PublishedContracts(bus.connection)
    for version in (NOTE_3, ContractVersion("note", 2, 2), ContractVersion("other", 9, 0)):
        await contracts.publish(version, SCHEMA)
    with caplog.at_level(logging.WARNING, "bus.registry"):
        async with reader([]).running(settings):
            await contracts.publish(ContractVersion("note", 4, 0), SCHEMA)
            while "note@4.0 is published" not in caplog.text:
                await asyncio.sleep(0.02)
    assert "note@3.0 is published, and this replica of reader accepts majors 1, 2" in caplog.text
    assert "note@2.2" not in caplog.text
    assert "other" not in caplog.text


async def test_live_agents_say_how_they_read(bus: Bus, settings: Settings) -> None:
    """SCH-5: replicas that read alike are one entry, those of another build another; who has left is silent."""
    plain = Agent("plain")

    @plain.on("note")
    async def note(payload: dict[str, Any]) -> None: ...

    deaf = Agent("deaf")

    @deaf.on("hum")
    async def hum(payload: BaseModel) -> None: ...

    async with Agent("gone").running(settings):
        pass
    async with (
        reader([]).running(settings),
        reader([]).running(settings),
        old_reader([]).running(settings),
        plain.running(settings),
        deaf.running(settings),
    ):
        await peers_of(bus, "reader", 3)
        readers = await readers_of(bus.connection, "note")
    by_schema = {(one.agent, one.schema): one for one in readers.found}
    assert by_schema.keys() == {("reader", "note@2.1"), ("reader", "note@1.0"), ("plain", None)}
    new = by_schema["reader", "note@2.1"]
    assert (len(new.replicas), new.majors, new.json_schema) == (2, (1, 2), Note.model_json_schema())
    assert by_schema["plain", None].majors is None
    assert by_schema["plain", None].json_schema is None
    assert (readers.others, readers.silent) == (("deaf",), ("gone",))


async def test_asking_an_empty_bus_ends_at_once(bus: Bus) -> None:
    async with asyncio.timeout(1):
        readers = await readers_of(bus.connection, "note")
    assert (readers.found, readers.others, readers.silent) == ((), (), ())


async def test_nonsense_in_the_question_hurts_nobody(bus: Bus, settings: Settings) -> None:
    async with reader([]).running(settings):
        subject = bus.connection.subjects.contracts("reader")
        answer: dict[str, Any] = {}
        for question in (b"", b"[", b"[]", b'{"type": 7}', b'{"type": "note"}'):
            answer = orjson.loads((await bus.connection.request(subject, question)).data)
            assert answer["agent"] == "reader"
        assert answer["majors"] == [1, 2]
