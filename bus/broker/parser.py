"""Our reading of the NATS protocol: messages by us, everything else by nats-py.

nats-py matches regular expressions on a growing buffer and reads headers with the e-mail parser, for every message;
that was half of what a message cost. Its own parser stays in charge of INFO, PING, PONG, +OK and -ERR.
`tests/integration/test_wire.py` and `tests/unit/broker/test_parser.py` hold the two to the same reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from nats.errors import ProtocolError
from nats.protocol.parser import Parser

if TYPE_CHECKING:
    from nats.aio.client import Client

MAX_CONTROL_LINE_BYTES = 1 << 20
_FIRST_LINE = b"NATS/1.0\r\n"
_NO_HEADERS: Mapping[str, str] = {}


class Headers(Mapping[str, str]):
    """The headers of a block as it stands on the wire; single ones are found in it without reading the others."""

    __slots__ = ("_block", "_read")

    def __init__(self, block: bytes) -> None:
        self._block = block
        self._read: dict[str, str] | None = None

    def get(self, name: str, default: Any = None) -> Any:
        """The value of one header, else `default`."""
        block = self._block
        if self._read is not None or not block.startswith(_FIRST_LINE):
            return self._all().get(name, default)
        mark = _mark(name)
        at = block.find(mark)
        if at < 0:
            return default
        first = at + len(mark)
        return block[first : block.find(b"\r\n", first)].decode("utf-8", "replace").strip(" \t")

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __getitem__(self, name: str) -> str:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, str]:
        if self._read is None:
            self._read = read_header_block(self._block)
        return self._read


@lru_cache(maxsize=256)
def _mark(name: str) -> bytes:
    return f"\r\n{name}:".encode()


class Arrival:
    """One message as the connection received it; its headers are read when somebody asks for them."""

    __slots__ = ("_block", "data", "reply", "subject")

    def __init__(self, subject: str, reply: str, data: bytes, block: bytes) -> None:
        self.subject = subject
        self.reply = reply
        self.data = data
        self._block = block

    @property
    def headers(self) -> Mapping[str, str]:
        """Its headers; of the server's own messages also `Status` and `Description`."""
        return Headers(self._block) if self._block else _NO_HEADERS


def read_header_block(block: bytes) -> dict[str, str]:
    """The headers of a block as it stands on the wire. The first of two with one name wins."""
    lines = block.decode("utf-8", "replace").split("\r\n")
    headers: dict[str, str] = {}
    if len(lines[0]) > len("NATS/1.0"):
        status, _, description = lines[0][len("NATS/1.0") :].strip().partition(" ")
        if status.isdigit():
            headers["Status"] = status
        if description:
            headers["Description"] = description.strip()
    for line in lines[1:]:
        name, separator, value = line.partition(":")
        if separator and name and name not in headers:
            headers[name] = value.strip(" \t")
    return headers


class Direct:
    """Stands where nats-py keeps a subscription's queue: its messages go to `take` at once."""

    __slots__ = ("take",)

    def __init__(self, take: Callable[[Arrival], None]) -> None:
        self.take = take

    def qsize(self) -> int:
        """Nothing waits here."""
        return 0

    def empty(self) -> bool:
        """Nothing waits here."""
        return True

    async def join(self) -> None:
        """Nothing waits here."""


class FastParser(Parser):
    """Takes the place of a client's parser: see `read_directly` in `wire.py`."""

    def __init__(self, client: Client) -> None:
        self._chunks: list[bytes] = []
        self._have = 0
        self._need = 0
        self._resets = 0
        super().__init__(client)

    def reset(self) -> None:
        """Forgets what was read of an unfinished message: the link is a new one."""
        super().reset()
        self._chunks = []
        self._have = self._need = 0
        self._resets += 1

    async def parse(self, data: bytes = b"") -> None:
        """Reads what has arrived and passes every whole message on, in order."""
        if self._chunks:
            self._chunks.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._chunks)
            self._chunks = []
        subscriptions: dict[int, Any] = self.nc._subs
        resets = self._resets
        at, size = 0, len(data)
        while at < size:
            line_end = data.find(b"\r\n", at)
            if line_end < 0:
                if size - at > MAX_CONTROL_LINE_BYTES:
                    raise ProtocolError("nats: a control line without an end")
                self._keep(data, at, 0)
                return
            tokens = data[at:line_end].split()
            verb = tokens[0] if tokens else b""
            if verb == b"MSG" or verb == b"HMSG":
                first = line_end + 2
                try:
                    total = int(tokens[-1])
                    body = first + int(tokens[-2]) if verb == b"HMSG" else first
                    sid = int(tokens[2])
                except (IndexError, ValueError):
                    raise ProtocolError("nats: malformed MSG") from None
                end = first + total
                if end + 2 > size:
                    self._keep(data, at, end + 2 - at)
                    return
                reply = tokens[3] if len(tokens) > (5 if verb == b"HMSG" else 4) else b""
                at = end + 2
                subscription = subscriptions.get(sid)
                if subscription is None:
                    continue
                queue = subscription._pending_queue
                if type(queue) is Direct:
                    subject = str(tokens[1], "utf-8", "replace")
                    queue.take(Arrival(subject, str(reply, "utf-8", "replace"), data[body:end], data[first:body]))
                    continue
                await self.nc._process_msg(sid, tokens[1], reply, data[body:end], data[first:body] or None)
            else:
                line = data[at : line_end + 2]
                at = line_end + 2
                await super().parse(line)
                if self.buf:
                    raise ProtocolError("nats: unknown protocol")
            if self._resets != resets:
                return  # The client gave this link up meanwhile.

    def _keep(self, data: bytes, at: int, need: int) -> None:
        """Waits for `need` bytes of what begins at `at` (0: for any more)."""
        self._chunks = [data[at:]]
        self._have = len(data) - at
        self._need = need
