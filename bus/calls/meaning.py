"""What an error of the broker says about a call: whether anybody had it, and whether it may have run."""

from __future__ import annotations

import time

from bus.errors import ErrorInfo, error


def meaning(info: ErrorInfo, agent: str, capability: str, deadline: float) -> ErrorInfo:
    """The error as the caller hears it; `started: false` in its details says that nothing ran."""
    reason = info.details.get("reason")
    if info.code != "broker.unavailable" or reason is None:
        return info
    if reason == "no_responders":
        return error(
            "agent.unavailable",
            f"{agent} is registered for {capability}, but nobody answers; has it died?",
            started=False,
        ).info
    if reason == "timeout" or time.monotonic() >= deadline:
        return error("tool.timeout", f"{agent} did not answer {capability} in time; it may still have run").info
    return error(
        "broker.unavailable",
        f"the link to the broker broke while {agent} had the call of {capability}; it may have run",
        reason=reason,
    ).info
