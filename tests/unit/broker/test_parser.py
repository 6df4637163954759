"""Our reading of the protocol is nats-py's, whatever arrives and however it is cut into pieces (DEL-1)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

from bus.broker.parser import Arrival, Direct, FastParser, Headers, read_header_block

Seen = list[tuple[str, str, bytes, dict[str, str]]]

TOKENS = st.from_regex(r"[A-Za-z0-9_=-]{1,9}", fullmatch=True)
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=4).map(".".join)
BODIES = st.one_of(
    st.binary(max_size=200), st.sampled_from([b"", b"\r\n", b"MSG a 1 3\r\nabc\r\n", b"PING\r\n", b"\r", b"x" * 5000])
)
HEADERS = st.dictionaries(
    st.from_regex(r"[A-Za-z-]{1,9}", fullmatch=True), st.from_regex(r"[!-~]{0,20}", fullmatch=True), max_size=3
)


class _Subscription:
    """The part of a nats-py subscription that the parsers look at."""

    def __init__(self, take: Callable[[Arrival], None]) -> None:
        self._pending_queue = Direct(take)


class _Client:
    """Writes down what a parser passes on."""

    def __init__(self) -> None:
        self.seen: Seen = []
        self.control: list[str] = []
        self._subs = {1: _Subscription(self.take)}

    def take(self, arrival: Arrival) -> None:
        self.seen.append((arrival.subject, arrival.reply, arrival.data, dict(arrival.headers)))

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, block: bytes | None) -> None:
        if sid in self._subs:
            headers = await Client()._process_headers(block) or {}
            self.seen.append((subject.decode(), reply.decode(), data, dict(headers)))

    async def _process_ping(self) -> None:
        self.control.append("ping")

    async def _process_pong(self) -> None:
        self.control.append("pong")

    async def _process_err(self, text: str) -> None:
        self.control.append(text)

    async def _process_info(self, info: dict[str, Any]) -> None:
        self.control.append(str(info))


@st.composite
def protocol(draw: st.DrawFn) -> bytes:
    """A few messages and control lines as a server sends them."""
    sid, subject, body = draw(st.sampled_from([1, 1, 1, 2])), draw(SUBJECTS), draw(BODIES)
    reply = draw(st.one_of(st.just(""), SUBJECTS.map(lambda one: f"{one} ")))
    kind = draw(st.sampled_from(["msg", "msg", "hmsg", "hmsg", "status", "control"]))
    if kind == "msg":
        return f"MSG {subject} {sid} {reply}{len(body)}\r\n".encode() + body + b"\r\n"
    if kind == "control":
        return draw(st.sampled_from([b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'slow'\r\n", b'INFO {"a":1}\r\n']))
    first, headers = b"NATS/1.0", draw(HEADERS)
    if kind == "status":
        first += draw(st.sampled_from([b" 503", b" 404 No Messages", b" 409 Consumer Deleted", b" 100 Idle Heartbeat"]))
        if first.endswith(b"503"):
            headers = {}  # What nats-py makes of headers after a bare status no server sends.
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()
    block = first + b"\r\n" + lines + b"\r\n"
    return f"HMSG {subject} {sid} {reply}{len(block)} {len(block) + len(body)}\r\n".encode() + block + body + b"\r\n"


async def _read(parser: Parser, data: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for begin, end in pairwise(places):
        await parser.parse(data[begin:end])


def _done(reading: Coroutine[Any, Any, None]) -> None:
    with pytest.raises(StopIteration):
        reading.send(None)


@given(st.lists(protocol(), max_size=5).map(b"".join), st.lists(st.integers(0, 20_000), max_size=6))
def test_it_reads_what_nats_py_reads(data: bytes, cuts: list[int]) -> None:
    ours, theirs = _Client(), _Client()
    _done(_read(FastParser(ours), data, cuts))  # type: ignore[arg-type]
    _done(_read(Parser(theirs), data, cuts))
    assert (ours.seen, ours.control) == (theirs.seen, theirs.control)


@pytest.mark.parametrize("line", [b"MSG a\r\n", b"MSG a x 3\r\n", b"HMSG a 1 x 3\r\n", b"HELLO\r\n", b"\r\n"])
def test_rubbish_ends_the_link(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        FastParser(_Client()).parse(line).send(None)  # type: ignore[arg-type]


def test_a_line_without_an_end_ends_the_link() -> None:
    with pytest.raises(ProtocolError):
        _read(FastParser(_Client()), b"x" * (2 << 20), list(range(0, 2 << 20, 1 << 18))).send(None)  # type: ignore[arg-type]


def test_a_new_link_begins_anew() -> None:
    client = _Client()
    parser = FastParser(client)  # type: ignore[arg-type]

    async def read() -> None:
        await parser.parse(b"MSG a 1 5\r\nab")
        parser.reset()
        await parser.parse(b"MSG b 1 2\r\nok\r\n")

    _done(read())
    assert client.seen == [("b", "", b"ok", {})]


def test_a_subject_that_is_no_utf8_does_not_end_the_reading() -> None:
    client = _Client()
    _done(FastParser(client).parse(b"MSG a.\xff 1 2\r\nok\r\n"))  # type: ignore[arg-type]
    assert client.seen == [("a.�", "", b"ok", {})]


def test_of_two_headers_with_one_name_the_first_counts() -> None:
    assert read_header_block("NATS/1.0\r\nA: 1\r\nA: 2\r\nB:ä\r\n\r\n".encode()) == {"A": "1", "B": "ä"}


BLOCKS = st.builds(
    lambda first, headers: b"\r\n".join([first, *(b"%b:%b" % one for one in headers), b"", b""]),
    st.sampled_from([b"NATS/1.0", b"NATS/1.0 503", b"NATS/1.0 404 No Messages"]),
    st.lists(
        st.tuples(
            st.sampled_from([b"a", b"A", b"traceparent", b"Status", b"xa"]),
            st.sampled_from([b"", b" ", b" 1", b"2 ", b" a:b", b"\xff", b" Status:"]),
        ),
        max_size=4,
    ),
)


@given(BLOCKS)
def test_a_header_found_alone_is_the_one_that_is_read(block: bytes) -> None:
    read = read_header_block(block)
    for name in ("a", "A", "traceparent", "Status", "Description", "missing"):
        assert Headers(block).get(name) == read.get(name)
        assert Headers(block).get(name, "none") == read.get(name, "none")
        assert (name in Headers(block)) == (name in read)
    assert Headers(block) == read
