"""A small HTTP service of the standard library, on the loopback interface, for the connector's tests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Service(ThreadingHTTPServer):
    """It answers by its paths, and keeps what it was asked in `seen`. `released` lets those go on that hang."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[dict[str, Any]] = []
        self.released = threading.Event()
        self.elsewhere = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Service
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length).decode()
        asked = {
            "method": self.command, "path": parts.path, "query": parse_qs(parts.query), "body": body,
            "headers": {name.lower(): value for name, value in self.headers.items()},
        }  # fmt: skip
        self.server.seen.append(asked)
        what, _, rest = parts.path.strip("/").partition("/")
        if what == "status":
            headers = {"Retry-After": "2"} if rest in ("429", "503") else {}
            self._say(int(rest), f'{{"say": "no, {self.headers.get("authorization")}"}}'.encode(), headers=headers)
        elif what == "text":
            self._say(200, "grüezi".encode("latin-1"), "text/plain; charset=latin-1")
        elif what == "bytes":
            self._say(200, b"\x00\x01", "image/png")
        elif what == "nothing":
            self._say(204, b"")
        elif what == "garbage":
            self._say(200, b"{nope", "application/json")
        elif what == "huge":
            self._say(200, b"x" * 200_000, "text/plain")
        elif what == "hang":
            self.server.released.wait(20)
            self._say(200, b"1")
        elif what == "break":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort")
            self.close_connection = True
        elif what == "move":
            self._say(302, b"", headers={"Location": f"/{rest}"})
        elif what == "away":
            self._say(307, b"", headers={"Location": f"{self.server.elsewhere}/{rest}"})
        elif what == "round":
            self._say(302, b"", headers={"Location": "/round"})
        else:
            self._say(200, json.dumps(asked).encode())

    do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815

    def _say(
        self, status: int, body: bytes, media_type: str = "application/json", *, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        if body:
            self.send_header("Content-Type", media_type)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving() -> Iterator[Service]:
    """A service that runs as long as the body."""
    service = Service()
    thread = threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield service
    finally:
        service.released.set()
        service.shutdown()
        service.server_close()
        thread.join()
