"""Posting OTLP over HTTP with JSON bodies: where it goes by the standard variables, and trying again."""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping

from bus.config import SettingsError

ATTEMPTS = 4
RETRIED_STATUS = {429, 502, 503, 504}


def endpoint(environment: Mapping[str, str] = os.environ, *, signal: str = "traces") -> str | None:
    """Where `traces` or `metrics` go by the standard variables; None when nowhere, or the SDK is disabled."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if environment.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip().lower() == "none":
        return None
    if exact := environment.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT"):
        return exact
    base = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    return f"{base.rstrip('/')}/v1/{signal}" if base else None


class OtlpPost:
    """Posts bodies of one signal to one address, within the standard timeout. Raises SettingsError for no address."""

    def __init__(self, url: str, signal: str) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise SettingsError(f"OTEL_EXPORTER_OTLP_ENDPOINT: {url!r} is not an http or https address")
        self.url = url
        prefix, exact = "OTEL_EXPORTER_OTLP", f"OTEL_EXPORTER_OTLP_{signal.upper()}"
        headers = os.environ.get(f"{exact}_HEADERS") or os.environ.get(f"{prefix}_HEADERS") or ""
        self._headers = {"Content-Type": "application/json", **pairs(headers)}
        self._timeout_s = float(os.environ.get(f"{exact}_TIMEOUT") or os.environ.get(f"{prefix}_TIMEOUT") or 10)

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
