"""Fast paths through nats-py: the few of its internals that we use, all of them here.

`tests/integration/test_wire.py` holds each of them, so that an upgrade of nats-py that moves one fails loudly.
What they save is told in `ops/README.md`, section Speed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nats.aio.transport import TcpTransport

from bus.broker.parser import Arrival, Direct, FastParser
from bus.errors import error

if TYPE_CHECKING:
    from nats.aio.client import Client, Server
    from nats.aio.subscription import Subscription

_NEWLINES = str.maketrans("\r\n", "  ")


def header_block(headers: Mapping[str, str]) -> bytes:
    """Headers as they stand on the wire. A value's line breaks become spaces, so none can add a header."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        lines = "".join([f"{name}: {value.translate(_NEWLINES)}\r\n" for name, value in headers.items()])
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def plain_block(message_id: str, lines: str) -> bytes:
    """As `header_block`, for an id that is known to be one line and headers that are written already."""
    return f"NATS/1.0\r\nNats-Msg-Id: {message_id}\r\n{lines}\r\n".encode()


def publish_command(subject: str, reply: str, headers: bytes, data: bytes) -> bytes:
    """The protocol line and body of one publish; `headers` is a block of `header_block`, or empty."""
    if headers:
        total = len(headers) + len(data)
        return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject.encode(), reply.encode(), len(headers), total, headers, data)
    return b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply.encode(), len(data), data)


def ack_commands(replies: Sequence[str]) -> bytes:
    """The acknowledgements of deliveries."""
    between = " 4\r\n+ACK\r\n"
    return f"PUB {f'{between}PUB '.join(replies)}{between}".encode() if replies else b""


def post(client: Client, command: bytes) -> bool:
    """Sends one or more commands at the end of this turn of the loop. While disconnected they are buffered up to the
    client's limit. Returns whether more is unsent than that.

    Raises BrokerError `broker.unavailable` when the connection is closed or its buffer full.
    """
    pending = client._pending_data_size + len(command)
    is_connected = client.is_connected
    if not is_connected:
        if client.is_closed or client.is_draining_pubs:
            raise error("broker.unavailable", "the connection is closed", reason="closed")
        if pending > client._max_pending_size:
            raise error("broker.unavailable", "not connected, and the buffer is full", reason="disconnected")
    client._pending.append(command)
    client._pending_data_size = pending
    queue = client._flush_queue
    if queue is not None and is_connected and queue.empty():
        queue.put_nowait(asyncio.get_running_loop().create_future())
    return bool(pending > client._max_pending_size)


def post_at_once(client: Client, command: bytes) -> None:
    """As `post`, but does not wait for the end of this turn where nothing else does: for a command that comes alone.

    Two system calls for two commands cost more than one for both, so who sends many wants `post`.
    """
    transport = client._transport
    if client.is_connected and not client._pending and isinstance(transport, TcpTransport):
        transport.write(command)  # type: ignore[no-untyped-call]
    else:
        post(client, command)


async def send(client: Client, command: bytes) -> None:
    """As `post`, and waits while more is unsent than the client's limit."""
    if post(client, command):
        await client._flush_pending(force_flush=True)


async def flush(client: Client, timeout_s: float) -> None:
    """Waits until the server has read everything that was sent before.

    nats-py's own flush writes its ping ahead of what is still buffered, so its answer says nothing about that.
    """
    await client._flush_pending(force_flush=True)
    await asyncio.wait_for(client.flush(), timeout_s)


async def unsubscribe(client: Client, subscription: Subscription, timeout_s: float) -> None:
    """Ends a subscription; returns once everything that the server had sent for it has been taken."""
    try:
        await client._send_unsubscribe(subscription._id)
        await flush(client, timeout_s)
    finally:
        client._remove_sub(subscription._id)


def server_name(client: Client) -> str:
    """Name of the server that the client is or was connected to."""
    return str(client._server_info.get("server_name", ""))


def server_id(client: Client) -> str:
    """What that server called itself; every start of one has another id."""
    return str(client._server_info.get("server_id", ""))


def server_version(client: Client) -> str:
    """Version of that server."""
    return str(client._server_info.get("version", ""))


def has_stopped_reading(client: Client) -> bool:
    """Whether its reading task has ended, which nobody else notices while it calls itself connected."""
    return client._reading_task is not None and client._reading_task.done()


def reconnects(client: Client) -> bool:
    """Whether somebody is working on the reconnection; nobody is when nats-py's task for it has ended."""
    task = client._reconnection_task
    return task is not None and not task.done()


def next_server(servers: list[Server], _: dict[str, Any]) -> tuple[Server | None, float]:
    """Picks the server that failed least, with jitter so that a thousand clients do not return at once."""
    choice = min(servers, key=lambda server: server.reconnects)
    return choice, random.uniform(0.05, 0.1) * min(2 ** min(choice.reconnects, 5), 20)


def abort(client: Client) -> None:
    """Drops the socket without waiting for unsent bytes."""
    writer = getattr(client._transport, "_io_writer", None)
    if writer is not None:
        writer.transport.abort()


async def close(client: Client, timeout_s: float) -> None:
    """Closes for good, within `timeout_s`.

    nats-py's own close can raise the cancellation of a task of its own, which would look like ours.
    """
    closing = asyncio.ensure_future(client.close())
    try:
        await asyncio.wait({closing}, timeout=timeout_s)
    finally:
        if not closing.done():
            closing.cancel()
            abort(client)
        elif not closing.cancelled():
            closing.exception()


def read_directly(client: Client) -> None:
    """Gives a new client our parser, before it connects."""
    client._ps = FastParser(client)


def take_directly(subscription: Subscription, take: Callable[[Arrival], None]) -> None:
    """Passes the messages of a subscription to `take` in the reading task, instead of through a queue and a task.

    The client must have our parser. `take` must neither block nor raise: an exception would end the reading (the
    watchdog then reconnects).
    """
    subscription._pending_queue = Direct(take)  # type: ignore[assignment]
