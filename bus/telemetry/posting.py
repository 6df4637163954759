"""Posting OTLP over HTTP with JSON bodies: where it goes by the standard variables, and trying again."""

from __future__ import annotations

import http.client
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping

from bus.config import SettingsError
from bus.telemetry.selection import is_selected

ATTEMPTS = 4
RETRIED_STATUS = {429, 502, 503, 504}
MAX_TIMEOUT_S = 600.0
# What HTTP allows; the client refuses the rest, each time that it sends.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")


def endpoint(environment: Mapping[str, str] = os.environ, *, signal: str = "traces") -> str | None:
    """Where `traces` or `metrics` go by the standard variables; None when nowhere, or the SDK is disabled."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if not is_selected(environment, signal):
        return None
    if exact := environment.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT"):
        return exact
    base = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    return f"{base.rstrip('/')}/v1/{signal}" if base else None


class OtlpPost:
    """Posts bodies of one signal to one address, within the standard timeout.

    Raises SettingsError, naming the variable, for an address, a timeout or headers that cannot be.
    """

    def __init__(self, url: str, signal: str, environment: Mapping[str, str] = os.environ) -> None:
        _check_address(url)
        self.url = url
        self._headers = {"Content-Type": "application/json", **_headers(*_variable(environment, signal, "HEADERS"))}
        self._timeout_s = _timeout_s(*_variable(environment, signal, "TIMEOUT"))

    def send(self, body: bytes) -> str:
        """Sends one body; tries again when the receiver is busy or away. Returns the problem, empty if it arrived."""
        deadline = time.monotonic() + self._timeout_s
        problem = ""
        for attempt in range(ATTEMPTS):
            request = urllib.request.Request(self.url, body, self._headers, method="POST")
            try:
                with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:
                    answer.read()
                return ""
            except urllib.error.HTTPError as refused:
                with refused:
                    problem = f"HTTP {refused.code}"
                if refused.code not in RETRIED_STATUS:
                    break
            except OSError as away:
                problem = str(getattr(away, "reason", away)) or type(away).__name__
            except http.client.HTTPException as strange:
                # Something listens there that is no HTTP server, often a port for gRPC.
                problem = f"no HTTP answer ({type(strange).__name__})"
            pause_s = 0.2 * 2**attempt
            if time.monotonic() + pause_s > deadline:
                break
            time.sleep(pause_s)
        return problem


def resource_variables() -> dict[str, str]:
    """What `OTEL_RESOURCE_ATTRIBUTES` says of this process."""
    return pairs(os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))


def pairs(text: str) -> dict[str, str]:
    """The pairs of `name=value,name=value`, values decoded from percent signs."""
    parts = [part.partition("=") for part in text.split(",") if "=" in part]
    return {name.strip(): urllib.parse.unquote(value.strip()) for name, _, value in parts}


def _check_address(url: str) -> None:
    try:
        parts = urllib.parse.urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # the port
        is_address = False
    if not is_address or not url.isascii() or any(sign <= " " for sign in url):
        raise SettingsError(f"OTEL_EXPORTER_OTLP_ENDPOINT: {url!r} is not an http or https address")


def _variable(environment: Mapping[str, str], signal: str, name: str) -> tuple[str, str]:
    """The name and the value of the variable that counts: the signal's own, else the common one."""
    exact, common = f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}", f"OTEL_EXPORTER_OTLP_{name}"
    return (exact, environment[exact]) if environment.get(exact) else (common, environment.get(common, ""))


def _timeout_s(name: str, text: str) -> float:
    try:
        timeout_s = float(text or 10)
    except ValueError:
        timeout_s = 0.0
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise SettingsError(f"{name}={text!r} is not a number of seconds, more than 0 and at most {MAX_TIMEOUT_S:.0f}")
    return timeout_s


def _headers(name: str, text: str) -> dict[str, str]:
    found = pairs(text)
    # The value is not repeated: it is often a key.
    if not found and text.strip():
        raise SettingsError(f"{name} is not name=value,name=value")
    for header, value in found.items():
        if not _HEADER_NAME.fullmatch(header) or not _HEADER_VALUE.fullmatch(value):
            raise SettingsError(f"{name}: the header {header!r} has characters that HTTP does not allow")
    return found
