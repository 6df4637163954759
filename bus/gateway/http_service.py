"""The connector for HTTP services: each capability is one kind of request (REG-11, SEC-7, EDGE-6)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urljoin, urlsplit

import orjson

from bus.calls.call import Call
from bus.errors import BusError, error
from bus.gateway.connector import Connector, Wrapped
from bus.gateway.template import Template, written
from bus.telemetry.redaction import HIDDEN, Redaction
from bus.text import one_line

if TYPE_CHECKING:
    import httpx

MAX_REDIRECTS = 5
MAX_CONNECT_S = 10.0
MAX_SHOWN_CHARS = 500
MAX_RETRY_AFTER_MS = 86_400_000
DEFAULT_MAX_BYTES = 4 * 1024 * 1024

_REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """How a capability becomes a request.

    Arguments that neither `url`, `query`, `headers` nor `body` names go into the query of GET, HEAD and DELETE, and
    into a JSON object as the body of others. `body`: "json", "form" or "none" for those, or the members of a JSON
    object. `redirect_hosts` are the other hosts that a redirect may lead to, without the headers.
    """

    method: str
    url: Template
    query: Mapping[str, Template] = field(default_factory=dict, hash=False)
    headers: Mapping[str, Template] = field(default_factory=dict, hash=False, repr=False)
    body: str | Mapping[str, Template] | None = field(default=None, hash=False)
    max_response_bytes: int = DEFAULT_MAX_BYTES
    redirect_hosts: tuple[str, ...] = ()

    @property
    def templates(self) -> tuple[Template, ...]:
        """All of its texts."""
        body = self.body.values() if isinstance(self.body, Mapping) else ()
        return (self.url, *self.query.values(), *self.headers.values(), *body)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What came from the environment, the longest first."""
        return tuple(sorted({one for each in self.templates for one in each.secrets}, key=len, reverse=True))


class HttpService(Connector):
    """Capabilities that are requests to HTTP services. Needs the extra `connectors` (httpx).

    JSON comes back as its value, text as text, nothing as null, everything else as a reference to an artifact. 429 is
    `upstream.rate_limit` with the time of `Retry-After`, 5xx and a broken connection `upstream.failed`, 401 and 403
    `auth.invalid_key`, other failures `tool.execution_failed`. An idempotency key travels as `Idempotency-Key`.
    """

    def __init__(self, requests: Sequence[tuple[Wrapped, HttpRequest]]) -> None:
        super().__init__([wrapped for wrapped, _ in requests])
        self._requests = {wrapped.name: request for wrapped, request in requests}
        self._client: httpx.AsyncClient | None = None
        self._redaction = Redaction()

    async def start(self) -> None:
        """Opens the connection pool. Raises ImportError that names the extra when httpx is missing."""
        try:
            import httpx
        except ImportError:
            raise ImportError(
                "connectors for HTTP need httpx: pip install 'envelope-bus[connectors]'", name="httpx"
            ) from None
        self._client = httpx.AsyncClient(follow_redirects=False)

    async def stop(self) -> None:
        """Closes the pool; a second call does nothing."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def dispatch(self, capability: str, arguments: dict[str, Any], call: Call) -> Any:
        """Makes the request, within what is left of the call's time."""
        import httpx

        assert self._client is not None
        request = self._requests[capability]
        options = composed(request, arguments)
        for name, value in (("Idempotency-Key", call.idempotency_key), ("traceparent", call.traceparent)):
            if value is not None:
                options["headers"].setdefault(name, value)
        where = f"{capability}: {options['method']} {shown_url(options['url'])}"
        try:
            async with asyncio.timeout(call.remaining_s):
                return await self._exchange(request, options, where, call)
        except (TimeoutError, httpx.TimeoutException):
            raise error("tool.timeout", f"{where} did not answer in time") from None
        except httpx.TransportError as problem:
            raise error("upstream.failed", f"{where} failed: {type(problem).__name__}") from None
        except httpx.HTTPError as problem:
            raise error("tool.execution_failed", f"{where} failed: {type(problem).__name__}") from None

    async def _exchange(self, request: HttpRequest, options: dict[str, Any], where: str, call: Call) -> Any:
        import httpx

        assert self._client is not None
        timeout = httpx.Timeout(call.remaining_s, connect=min(MAX_CONNECT_S, call.remaining_s))
        for _ in range(MAX_REDIRECTS + 1):
            async with self._client.stream(**options, timeout=timeout) as response:
                if response.status_code in _REDIRECTS and "location" in response.headers:
                    options = self._redirected(request, options, response, where)
                    continue
                body = await self._body(response, request.max_response_bytes, where)
                if not response.is_success:
                    raise self._failure(request, response, body, where)
                return await _result(response, body, where, call)
        raise error("tool.execution_failed", f"{where} redirects more than {MAX_REDIRECTS} times")

    async def _body(self, response: httpx.Response, limit: int, where: str) -> bytes:
        """The body; of a failure only as much as may be shown. Raises Rejected `protocol.too_large`."""
        found = bytearray()
        async for part in response.aiter_bytes():
            found += part
            if len(found) > limit:
                if not response.is_success:
                    break
                raise error(
                    "protocol.too_large", f"{where} answered with more than {limit} bytes", limit=limit, size=len(found)
                )
        return bytes(found)

    def _redirected(
        self, request: HttpRequest, options: dict[str, Any], response: httpx.Response, where: str
    ) -> dict[str, Any]:
        """The request that a redirect asks for. Raises ToolError for one that leads where it must not."""
        here = urlsplit(str(response.url))
        to = urljoin(str(response.url), response.headers["location"])
        there = urlsplit(to)
        changed = {**options, "url": to}
        if (there.scheme, there.netloc) != (here.scheme, here.netloc):
            is_as_safe = there.scheme == "https" or there.scheme == here.scheme == "http"
            if not is_as_safe or there.hostname not in request.redirect_hosts:
                raise error(
                    "tool.execution_failed",
                    f"{where} redirects to {shown_url(to)}, another host; name it in redirect_hosts if that is meant",
                )
            changed["headers"] = {}
        if response.status_code == 303 or (response.status_code in (301, 302) and options["method"] == "POST"):
            changed.update(method="GET", content=None)
            changed["headers"] = {
                name: value for name, value in changed["headers"].items() if name.lower() != "content-type"
            }
        return changed

    def _failure(self, request: HttpRequest, response: httpx.Response, body: bytes, where: str) -> BusError:
        status = response.status_code
        shown = body[: 4 * MAX_SHOWN_CHARS].decode("utf-8", "replace")
        for secret in request.secrets:
            shown = shown.replace(secret, HIDDEN)
        shown = one_line(self._redaction.text(shown), MAX_SHOWN_CHARS)
        told = f"{where} answered {status} {response.reason_phrase}".rstrip() + (f": {shown}" if shown else "")
        details: dict[str, Any] = {"status": status}
        if (after_ms := retry_after_ms(response.headers.get("retry-after"))) is not None:
            details["retry_after_ms"] = after_ms
        if status in (401, 403):
            return error("auth.invalid_key", told, **details)
        if status == 429:
            return error("upstream.rate_limit", told, **details)
        if status >= 500 or status == 408:
            return error("upstream.failed", told, **details)
        return error("tool.execution_failed", told, **details)


def composed(request: HttpRequest, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of httpx for a request. Raises Rejected for a value that would leave its place in the path."""
    named = {name for template in request.templates for name in template.names}
    rest = {name: value for name, value in arguments.items() if name not in named}
    url = request.url.fill(arguments, _in_url)
    assert url is not None
    query: list[tuple[str, str]] = []
    for name, template in request.query.items():
        # A list that is all there is of a parameter repeats it.
        whole = arguments.get(template.only_name) if template.only_name else template.fill(arguments, _plain)
        query += [(name, written(one)) for one in (whole if isinstance(whole, list) else [whole]) if one is not None]
    filled = {name: template.fill(arguments, _in_header) for name, template in request.headers.items()}
    headers = {name: value for name, value in filled.items() if value is not None}
    content: bytes | None = None
    body = request.body or ("none" if request.method in ("GET", "HEAD", "DELETE") else "json")
    if isinstance(body, Mapping):
        content = orjson.dumps(_members(body, arguments))
    elif body == "json":
        content = orjson.dumps(rest)
    elif body == "form":
        content = urlencode([(name, written(value)) for name, value in _pairs(rest)], errors="replace").encode()
        headers.setdefault("Content-Type", "application/x-www-form-urlencoded")
    if isinstance(body, Mapping) or body == "none":
        query += [(name, written(value)) for name, value in _pairs(rest)]
    if content is not None:
        headers.setdefault("Content-Type", "application/json")
    if query:
        # Not by httpx, which would put it in the place of a query that the URL has.
        url = f"{url}{'&' if '?' in url else '?'}{urlencode(query, errors='replace')}"
    return {"method": request.method, "url": url, "headers": headers, "content": content}


def shown_url(url: str) -> str:
    """A URL as messages show it: without a query, which may hold a key, and without a user."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"


def retry_after_ms(header: str | None) -> int | None:
    """What `Retry-After` says, as seconds or as a date; at most a day."""
    if header is None:
        return None
    if header.strip().isdecimal():
        return min(int(header.strip()[:9]) * 1000, MAX_RETRY_AFTER_MS)
    try:
        at = parsedate_to_datetime(header)
    except ValueError:
        return None
    left = (at if at.tzinfo else at.replace(tzinfo=UTC)) - datetime.now(UTC)
    return min(max(0, round(left.total_seconds() * 1000)), MAX_RETRY_AFTER_MS)


async def _result(response: httpx.Response, body: bytes, where: str, call: Call) -> Any:
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not body:
        return None
    if media_type == "application/json" or media_type.endswith("+json"):
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as problem:
            raise error("tool.invalid_result", f"{where} says that it answers JSON, but: {problem}") from None
    if media_type.startswith("text/") or not media_type:
        try:
            return body.decode(response.encoding or "utf-8", "replace")
        except LookupError:
            return body.decode("utf-8", "replace")
    stored = await call.artifacts.put(body, name="response", media_type=media_type)
    return {"sha256": stored.sha256, "size_bytes": stored.size_bytes, "media_type": media_type}


def _pairs(rest: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [
        (name, one)
        for name, value in rest.items()
        for one in (value if isinstance(value, list) else [value])
        if one is not None
    ]


def _members(body: Mapping[str, Template], arguments: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        name: arguments.get(template.only_name) if template.only_name else template.fill(arguments, _plain)
        for name, template in body.items()
    }
    return {name: value for name, value in found.items() if value is not None}


def _plain(_: str, value: Any) -> str:
    return written(value)


def _in_url(name: str, value: Any) -> str:
    text = written(value)
    if text in ("", ".", ".."):
        raise _unfit(name, f"must not be {text!r}, because it is a part of a path")
    return quote(text, safe="", errors="replace")


def _in_header(name: str, value: Any) -> str:
    text = written(value)
    if not text.isascii() or not text.isprintable():
        raise _unfit(name, "must be printable ASCII, because it is a part of a header")
    return text


def _unfit(name: str, problem: str) -> BusError:
    found = {"path": f"arguments.{name}", "problem": problem}
    return error("tool.validation_failed", f"arguments.{name}: {problem}", errors=[found])
