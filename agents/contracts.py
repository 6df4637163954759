"""Between the versions of the brief's payloads: what replicas of an older release write, and can read.

`review_request` 2.0 names `is_exhausted` what 1.0 called `exhausted`. With both casts, writers and reviewers may be
upgraded in any order.
"""

from __future__ import annotations

from typing import Any

from bus import Contracts

contracts = Contracts()


@contracts.upcast("review_request", 1)
def is_exhausted_from_exhausted(payload: dict[str, Any]) -> dict[str, Any]:
    """1 to 2, for reviewers: a writer of an older release calls it by its old name."""
    if "exhausted" in payload:
        payload["is_exhausted"] = payload.pop("exhausted")
    return payload


@contracts.downcast("review_request", 2)
def exhausted_from_is_exhausted(payload: dict[str, Any]) -> dict[str, Any]:
    """2 to 1, for writers: while a reviewer of an older release is running."""
    if "is_exhausted" in payload:
        payload["exhausted"] = payload.pop("is_exhausted")
    return payload
