"""The internals of nats-py that the fast paths stand on; an upgrade that moves one fails here."""

from __future__ import annotations

import asyncio

import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

from bus import BrokerError
from bus.broker.parser import Arrival
from bus.broker.wire import (
    close,
    flush,
    header_block,
    publish_command,
    read_directly,
    reconnects,
    send,
    take_directly,
    unsubscribe,
)
from bus.testing import NatsServer


@pytest.mark.parametrize("data", [b"", b"body", b"\r\nPUB evil 0\r\n\r\n"])
async def test_commands_arrive_as_nats_py_sends_them(shared_server: NatsServer, data: bytes) -> None:
    client = await nats.connect(shared_server.url)
    arrived = await client.subscribe("wire.test")
    headers = {"Nats-Msg-Id": "a:1", "X": "ä \r\nEvil: 1"}
    await send(client, publish_command("wire.test", "an.inbox", header_block(headers), data))
    await send(client, publish_command("wire.test", "", b"", data) * 2)
    first, second, third = [await arrived.next_msg(2) for _ in range(3)]
    assert (first.data, first.reply, first.headers) == (data, "an.inbox", {"Nats-Msg-Id": "a:1", "X": "ä   Evil: 1"})
    assert (second.data, second.reply, second.headers) == (data, "", None)
    assert third.data == data
    await client.close()


@given(st.dictionaries(st.from_regex(r"[A-Za-z-]{1,9}", fullmatch=True), st.text(max_size=30), max_size=4))
def test_no_header_value_can_add_a_header(headers: dict[str, str]) -> None:
    headers = {name: value.encode("utf-8", "ignore").decode() for name, value in headers.items()}
    assert header_block(headers).count(b"\r\n") == len(headers) + 2
    assert header_block(headers).count(b"\n") == len(headers) + 2


async def test_messages_are_taken_in_the_reading_task(shared_server: NatsServer) -> None:
    client = Client()
    read_directly(client)
    await client.connect(shared_server.url)
    taken: list[Arrival] = []
    subscription = await client.subscribe("wire.direct")
    take_directly(subscription, taken.append)
    for number in range(100):
        await client.publish("wire.direct", b"%d" % number)
    await flush(client, 2)
    assert [message.data for message in taken] == [b"%d" % number for number in range(100)]
    await client.publish("wire.direct", b"last")
    await unsubscribe(client, subscription, 2)
    assert taken[-1].data == b"last"
    await client.publish("wire.direct", b"too late")
    await flush(client, 2)
    assert len(taken) == 101
    await client.close()


async def test_a_closed_or_full_client_refuses(server: NatsServer) -> None:
    client = await nats.connect(server.url, pending_size=1000)
    await asyncio.to_thread(server.stop)
    while client.is_connected:
        await asyncio.sleep(0.01)
    with pytest.raises(BrokerError, match="buffer is full"):
        await send(client, publish_command("wire.test", "", b"", b"x" * 2000))
    assert reconnects(client)
    await close(client, 3)
    assert client.is_closed
    with pytest.raises(BrokerError, match="closed"):
        await send(client, publish_command("wire.test", "", b"", b"x"))


def test_the_names_are_where_they_were() -> None:
    client = Client()
    for name in (
        "_flush_pending",
        "_flush_queue",
        "_max_pending_size",
        "_process_msg",
        "_ps",
        "_subs",
        "_pending",
        "_pending_data_size",
        "_reading_task",
        "_reconnection_task",
        "_remove_sub",
        "_send_command",
        "_send_unsubscribe",
        "_transport",
    ):
        assert hasattr(client, name), name
