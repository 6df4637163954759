"""Budgets: what a chain of messages may use up. Deadlines and hops are inherited and checked here."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from bus.envelope import Envelope, timestamps
from bus.errors import error

Extensions = dict[str, Any]
PATH_KEPT = 128


def check(envelope: Envelope, *, max_hops: int, now: datetime | None = None) -> None:
    """Refuses what is too late or has come too far.

    Raises Rejected: `protocol.expired` after `expires_at` or the inherited `budget.deadline_at`,
    `protocol.loop` beyond `max_hops`.
    """
    extensions = envelope.extensions
    if not extensions:
        return
    for path, moment in (
        ("extensions.expires_at", extensions.get("expires_at")),
        ("extensions.budget.deadline_at", (extensions.get("budget") or {}).get("deadline_at")),
    ):
        if moment is not None and timestamps.instant(moment) <= (now or datetime.now(UTC)):
            raise error("protocol.expired", f"{path} was {moment}; it is too late to handle this", path=path)
    if (hops := extensions.get("hops", 0)) > max_hops:
        raise error(
            "protocol.loop",
            f"the message has come {hops} hops, over the limit of {max_hops}; agents are sending in a circle: "
            f"{' > '.join(extensions.get('path', [])[-6:])}",
            hops=hops,
            limit=max_hops,
        )


def inherit(parent: Envelope, agent: str) -> Extensions:
    """What a message sent while handling `parent` inherits: one hop more, the path, the deadline."""
    inherited: Extensions = {
        "causation_id": parent.message_id,
        "correlation_id": parent.extensions.get("correlation_id", parent.message_id),
        "hops": parent.hops + 1,
        "path": [*parent.extensions.get("path", []), agent][-PATH_KEPT:],
    }
    if "budget" in parent.extensions:
        inherited["budget"] = parent.extensions["budget"]
    if "labels" in parent.extensions:
        inherited["labels"] = parent.extensions["labels"]
    return inherited
