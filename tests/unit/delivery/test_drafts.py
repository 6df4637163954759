"""Drafts and extensions as Python writes them (DEL-8)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from bus import Envelope, Rejected
from bus.delivery.drafts import written


def test_nothing_is_nothing() -> None:
    assert written(None, None) is None
    assert written({}, None) == {}


def test_times_become_text() -> None:
    moment = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    given = {"deliver_at": moment, "expires_at": moment, "mine": 1}
    text = "2030-01-02T03:04:05+00:00"
    assert written(given, None) == {"deliver_at": text, "expires_at": text, "mine": 1}
    assert given["deliver_at"] is moment


def test_a_delay_counts_from_now() -> None:
    before = datetime.now(UTC)
    result = written(None, 10)
    assert result is not None
    assert timedelta(seconds=10) <= datetime.fromisoformat(result["deliver_at"]) - before < timedelta(seconds=15)


def test_a_delay_and_a_time_are_one_too_many() -> None:
    with pytest.raises(ValueError, match="not both"):
        written({"deliver_at": "2030-01-01T00:00:00Z"}, 1)


def test_a_time_without_a_zone_is_refused_by_name() -> None:
    with pytest.raises(Rejected, match=r"extensions\.deliver_at"):
        Envelope(sender="a", to="b", type="t", extensions=written({"deliver_at": datetime(2030, 1, 1)}, None))
