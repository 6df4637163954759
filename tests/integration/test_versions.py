"""Several versions of one contract: upcasters, refusals, what senders know, and replicas that differ (SCH-4, REG-9)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from bus import Agent, Bus, Contracts, Message, RegistryError, Rejected, Settings
from bus.broker.store import store
from bus.broker.streams import StreamNames, last_seq_of
from bus.doctor import examine
from bus.registry.lease import registry_of
from bus.registry.peers import Peer, Peers
from bus.testing import Ledger, settled
from tests.integration.test_delivery import settled_dead_letters


class OldNote(BaseModel):
    __contract__ = "note@1.0"
    title: str


class Note(BaseModel):
    __contract__ = "note@2.1"
    heading: str
    tags: list[str] = []


def reader(got: list[tuple[Any, Message]], *, name: str = "reader", upcasts: bool = True) -> Agent:
    """An agent that reads notes of major 2, and with the upcaster of major 1."""
    agent = Agent(name)

    @agent.on("note")
    async def note(payload: Note, message: Message) -> None:
        got.append((payload, message))

    if upcasts:
        agent.upcast("note", 1)(heading_from_title)
    return agent


def heading_from_title(payload: dict[str, Any]) -> dict[str, Any]:
    payload["heading"] = payload.pop("title")
    return payload


def old_reader(got: list[tuple[Any, Message]]) -> Agent:
    """The same agent, one release earlier."""
    agent = Agent("reader")

    @agent.on("note")
    async def note(payload: OldNote, message: Message) -> None:
        got.append((payload, message))

    return agent


async def peers_of(bus: Bus, agent: str, count: int) -> list[Peer]:
    """Waits until a fresh look finds this many live replicas."""
    peers = Peers(bus.connection)
    try:
        while len(found := await peers.surely_of(agent)) != count:
            await asyncio.sleep(0.02)
        return found
    finally:
        await peers.stop()


@pytest.fixture
async def late_bus(settings: Settings) -> AsyncIterator[Bus]:
    """A client that never asks what the receiver accepts."""
    async with Bus.connect("late", settings=settings) as one:
        one._publisher._negotiation = None
        yield one


async def test_an_old_payload_reaches_a_new_model(bus: Bus, settings: Settings) -> None:
    """SCH-4: upcast before the model; the version that was sent, and its payload, stay on the message."""
    got: list[tuple[Any, Message]] = []
    async with reader(got).running(settings):
        sent = await bus.send("reader", "note", OldNote(title="Fog"))
        assert sent.schema == "note@1.0"
        await bus.send("reader", "note", Note(heading="Sea", tags=["salt"]))
        await bus.send("reader", "note", {"heading": "Plain"})
        await bus.send("reader", "note", {"heading": "Minor", "new": 1}, extensions={"schema": "note@2.9"})
        await settled(bus, 10)
    read = {payload.heading: (message.schema_version, message.payload) for payload, message in got}
    assert read == {
        "Fog": ("note@1.0", {"title": "Fog"}),
        "Sea": ("note@2.1", {"heading": "Sea", "tags": ["salt"]}),
        "Plain": (None, {"heading": "Plain"}),
        "Minor": ("note@2.9", {"heading": "Minor", "new": 1}),
    }


async def test_an_unknown_major_is_a_dead_letter_until_the_receiver_is_upgraded(
    bus: Bus, late_bus: Bus, settings: Settings
) -> None:
    """SCH-4, DEL-4: the letter names what is supported, and a retry after the upgrade is handled."""
    got: list[tuple[Any, Message]] = []
    async with old_reader(got).running(settings):
        sent = await late_bus.send("reader", "note", Note(heading="Sea"))
        (dead,) = await settled_dead_letters(bus, 1)
        assert dead.code == "protocol.unsupported_schema"
        assert dead.details == {"schema": "note@2.1", "supported": ["note@1"]}
        outcome = await bus.outcome(sent, timeout_s=5)
        assert outcome.dead is not None
    async with reader(got).running(settings):
        await bus.dead_letters.retry(dead.id)
        await settled(bus, 10)
    assert [payload for payload, _ in got] == [Note(heading="Sea")]


@pytest.mark.parametrize("schema", ["note@0.9", "note@3.0", "other@2.0"])
async def test_what_no_chain_reaches_is_refused(late_bus: Bus, settings: Settings, schema: str) -> None:
    async with reader([]).running(settings):
        await late_bus.send("reader", "note", {"heading": "x"}, extensions={"schema": schema})
        (dead,) = await settled_dead_letters(late_bus, 1)
    assert (dead.code, dead.details["supported"]) == ("protocol.unsupported_schema", ["note@1", "note@2"])


async def test_an_unknown_envelope_version_is_read_after_the_upgrade(
    bus: Bus, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENV-3: a dead letter with the list, and a retry that the upgraded receiver handles."""
    got: list[tuple[Any, Message]] = []
    fields = {
        "version": "1.3", "message_id": "m1", "trace_id": "t1", "from": "foreigner", "to": "reader", "type": "note",
        "payload": {"heading": "Sea"},
    }  # fmt: skip
    async with reader(got).running(settings):
        subject = bus.connection.subjects.work("reader", "normal", "foreigner", "note")
        await store(bus.connection, subject, orjson.dumps(fields), {}, timeout_s=5)
        (dead,) = await settled_dead_letters(bus, 1)
        assert (dead.code, dead.details["supported"]) == ("protocol.unsupported_version", ["1.2"])
    monkeypatch.setattr("bus.envelope.versions.SUPPORTED", frozenset({"1.2", "1.3"}))
    async with reader(got).running(settings):
        await bus.dead_letters.retry(dead.id)
        await settled(bus, 10, agents=["reader"])
    assert [payload.heading for payload, _ in got] == ["Sea"]


async def test_a_bad_upcaster_is_a_dead_letter_and_never_a_loop(bus: Bus, settings: Settings) -> None:
    """SCH-4: it raises, forgets to return, or returns what the model refuses: one attempt, one letter each."""
    agent = Agent("reader")

    @agent.on("note")
    async def note(payload: Note) -> None:
        raise AssertionError("never reached")

    @agent.upcast("note", 1)
    def bad(payload: dict[str, Any]) -> Any:
        match payload["title"]:
            case "raises":
                raise SystemExit("out of here")
            case "forgets":
                return None
        return payload

    async with agent.running(settings):
        for title in ("raises", "forgets", "refused"):
            await bus.send("reader", "note", OldNote(title=title))
        letters = await settled_dead_letters(bus, 3)
    assert {dead.code for dead in letters} == {"tool.validation_failed"}
    assert {dead.attempts for dead in letters} == {1}
    reasons = " ".join(dead.reason for dead in letters)
    assert "upcaster note 1 to 2" in reasons
    assert "SystemExit: out of here" in reasons
    assert "it returned null" in reasons


async def test_upcasters_that_lead_nowhere_stop_the_start(settings: Settings) -> None:
    """SCH-4: every reason at once, before the agent takes a message."""
    agent = reader([])
    agent.upcast("note", 1)(lambda payload: payload)
    agent.upcast("note", 2)(lambda payload: payload)
    agent.upcast("other", 1)(lambda payload: payload)
    with pytest.raises(ValueError) as refused:
        async with agent.running(settings):
            raise AssertionError("it runs")
    for reason in ("two for one step", "leads past the handler's model, which is note@2.1", "'other', but no handler"):
        assert reason in str(refused.value)


async def test_a_sender_fails_before_it_sends_what_nobody_accepts(bus: Bus, settings: Settings) -> None:
    """REG-9: the error has both lists, and nothing is stored."""
    async with old_reader([]).running(settings):
        with pytest.raises(RegistryError) as refused:
            await bus.send("reader", "note", Note(heading="Sea"))
        assert refused.value.info.code == "registry.no_common_version"
        assert refused.value.info.details == {
            "ours": {"schemas": ["note@2"], "envelope": "1.2"},
            "theirs": {"schemas": ["note@1"], "envelopes": ["1.2"]},
        }
        names = StreamNames.of(settings.namespace)
        assert await last_seq_of(bus.connection, names.history, bus.connection.subjects.history_of("reader")) == 0
    # It has left, so nothing is known of it any more: the message waits for the next replica.
    await peers_of(bus, "reader", 0)
    got: list[tuple[Any, Message]] = []
    async with reader(got).running(settings):
        await peers_of(bus, "reader", 1)
        await bus.send("reader", "note", Note(heading="Sea"))
        await settled(bus, 10)
    assert len(got) == 1


async def test_a_sender_casts_down_for_an_old_receiver(settings: Settings) -> None:
    """REG-9."""
    contracts, got = Contracts(), list[tuple[Any, Message]]()

    @contracts.downcast("note", 2)
    def title_from_heading(payload: dict[str, Any]) -> dict[str, Any]:
        return {"title": payload["heading"]}

    relay = Agent("relay", contracts=[contracts])

    @relay.on("go")
    async def go(payload: Any, message: Message) -> None:
        await message.send("reader", "note", Note(heading=payload["heading"]))

    async with (
        Bus.connect("tester", settings=settings, contracts=[contracts]) as bus,
        old_reader(got).running(settings),
        relay.running(settings),
    ):
        note = Note(heading="Sea", tags=["salt"])
        sent = await bus.send("reader", "note", note)
        assert (sent.schema, sent.payload) == ("note@1.0", {"title": "Sea"})
        await bus.send("relay", "go", {"heading": "Fog"})
        await settled(bus, 10)
        (await Ledger.read(bus, accepted=[sent])).check()
    assert {payload.title for payload, _ in got} == {"Sea", "Fog"}


async def test_sends_work_without_the_registry(bus: Bus, settings: Settings) -> None:
    """REG-9: the bucket is gone; agents start, messages pass, only their early checks are missing."""
    got: list[tuple[Any, Message]] = []
    await bus.connection.jetstream().delete_stream(registry_of(bus.connection).stream)
    agent = reader(got)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(agent.running(settings))
        await bus.connection.jetstream().delete_stream(registry_of(bus.connection).stream)
        await bus.send("reader", "note", Note(heading="Sea"))
        await bus.send("reader", "note", {}, extensions={"schema": "note@7.0"})
        (dead,) = await settled_dead_letters(bus, 1)
    assert dead.code == "protocol.unsupported_schema"
    assert len(got) == 1


async def test_a_lease_ends_with_its_replica_or_with_its_time(bus: Bus, settings: Settings) -> None:
    """REG-9: renewed while it lives, gone at once on a stop, and after its time to live when it died."""
    settings = Settings.load(**{**settings.model_dump(), "heartbeat_s": 0.3, "lease_ttl_s": 1})
    async with reader([]).running(settings):
        (peer,) = await peers_of(bus, "reader", 1)
        assert peer.accepts.to_wire() == {
            "envelopes": ["1.2"],
            "types": {"note": {"majors": [1, 2], "schema": "note@2.1"}},
        }
        await asyncio.sleep(1.5)
        await peers_of(bus, "reader", 1)
    await peers_of(bus, "reader", 0)
    await registry_of(bus.connection).write("accepts.reader.dead", b'{"ttl_s": 1}', ttl_s=1, after=None)
    await registry_of(bus.connection).write("accepts.reader.odd", b"[1]", ttl_s=1, after=None)
    await peers_of(bus, "reader", 1)
    await peers_of(bus, "reader", 0)
    leases = registry_of(bus.connection)
    while await last_seq_of(bus.connection, leases.stream, leases.subject("accepts.reader.dead")):
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("sent", ["note", "partitioned", "new_type"])
async def test_what_one_replica_cannot_read_reaches_the_one_that_can(
    late_bus: Bus, settings: Settings, sent: str
) -> None:
    """REG-9: an old and a new replica share the queue; nothing is lost, doubled or buried."""
    old: list[tuple[Any, Message]] = []
    new: list[tuple[Any, Message]] = []
    newer = reader(new)

    @newer.on("new_type")
    async def new_type(payload: Any, message: Message) -> None:
        new.append((payload, message))

    async with old_reader(old).running(settings), newer.running(settings):
        await peers_of(late_bus, "reader", 2)
        count = 20
        for n in range(count):
            if sent == "new_type":
                await late_bus.send("reader", "new_type", {})
            else:
                keys = {"partition_key": f"k{n}"} if sent == "partitioned" else {}
                await late_bus.send("reader", "note", Note(heading=str(n)), extensions=keys)
                await late_bus.send("reader", "note", OldNote(title=str(n)), extensions=keys)
        await settled(late_bus, 25)
        ledger = await Ledger.read(late_bus)
    ledger.check()
    assert not ledger.dead
    assert len(new) >= count
    assert len(new) + len(old) == count * (1 if sent == "new_type" else 2)
    assert all(isinstance(payload, OldNote) for payload, _ in old)


async def test_a_message_that_was_handed_over_may_still_die(late_bus: Bus, settings: Settings) -> None:
    """The ledger counts the copies as one message, and the retry policy begins anew with a copy."""
    agent, attempts = reader([]), list[int]()

    @agent.on("new_type")
    async def new_type(payload: Any, message: Message) -> None:
        attempts.append(message.attempt)
        raise RuntimeError("no")

    async with old_reader([]).running(settings), agent.running(settings):
        await peers_of(late_bus, "reader", 2)
        for _ in range(10):
            await late_bus.send("reader", "new_type", {})
        await settled(late_bus, 25)
        ledger = await Ledger.read(late_bus)
    ledger.check()
    assert len(ledger.dead) == 10
    assert max(attempts) > 1


async def test_the_doctor_names_an_upgrade_that_has_not_ended(bus: Bus, settings: Settings) -> None:
    """REG-9: replicas that differ are named with what each accepts."""

    async def found() -> list[str]:
        return [one.message for one in await examine(bus.connection) if one.subject == "versions"]

    async with reader([]).running(settings), old_reader([]).running(settings):
        assert await found() == [
            "reader: its replicas differ: 1 accept note 1 (envelope 1.2); 1 accept note 1/2 (envelope 1.2)"
        ]
    async with reader([]).running(settings), reader([]).running(settings):
        assert await found() == []


def test_a_version_that_is_not_the_models_is_refused() -> None:
    agent = Agent("reader")

    async def note(payload: Note) -> None: ...

    for version, reason in (("3.0", r"is note@2\.1"), ("2", "not major.minor"), ("2.01", "not major.minor")):
        with pytest.raises(ValueError, match=reason):
            agent.on("note", version=version)(note)
    agent.on("note", version="2.1")(note)
    agent.on("other", version="4.0")(note)


async def test_a_wrong_contract_of_a_message_is_malformed(bus: Bus) -> None:
    with pytest.raises(Rejected, match=r"extensions\.schema"):
        await bus.send("reader", "note", {}, extensions={"schema": "note@2"})
