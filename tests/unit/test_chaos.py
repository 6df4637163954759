"""The verdict of `bus chaos`: a deed that is not the expected one is bad (DEL-4)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from bus.chaos import Finding, _fate
from bus.testing import Entry, Run

RUN = Run(1, datetime.now(UTC), 1.0, datetime.now(UTC))


@pytest.mark.parametrize(
    ("entry", "fate"),
    [
        (Entry(copies={1}, runs=[RUN]), "handled once"),
        (Entry(copies={1}, runs=[RUN, RUN._replace(attempt=2)]), "handled 2 times"),
        (Entry(copies={1}, dead={1: "protocol.expired"}), "dead letter protocol.expired"),
        (Entry(copies={1}, waiting={1}), "waits"),
        (Entry(copies={1}), "lost"),
        (Entry(), "lost"),
    ],
)
def test_every_fate_has_its_words(entry: Entry, fate: str) -> None:
    assert _fate(entry) == fate
    assert Finding("x", "x", "handled once", fate).is_good == (fate == "handled once")
