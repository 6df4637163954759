"""What a terminal shows never obeys the wire."""

import unicodedata
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from bus import Envelope, Sighting
from bus.cli.render import sighting_line, table
from bus.text import clean


@given(st.text())
def test_no_control_character_reaches_the_terminal(text: str) -> None:
    assert not [char for char in clean(text) if unicodedata.category(char)[0] == "C"]


def sighting(kind: str, subject: str, headers: dict[str, str] | None = None) -> Sighting:
    envelope = Envelope(sender="boss", to="worker", type="note")
    return Sighting(kind, subject, 1, datetime(2026, 1, 1, tzinfo=UTC), headers or {}, envelope.encode(), envelope)


def test_a_forged_sender_is_shown_as_what_it_is() -> None:
    """SEC-1: the subject is the authority."""
    honest = sighting("work", "bus.v1.history.worker.normal.boss.note")
    assert "  boss > worker  note" in sighting_line(honest)
    origin = {"Bus-Origin-Subject": "bus.v1.work.worker.normal.thief.note"}
    for forged in (
        sighting("work", "bus.v1.history.worker.normal.thief.note"),
        sighting("event", "bus.v1.event.thief.-.note"),
        sighting("dead", "bus.v1.dead.worker.auth-unverified_sender", origin),
    ):
        assert "thief (as boss) > worker  note" in sighting_line(forged)
        assert forged.matches(workflow_id=None, agent="thief", type=None)


def test_columns_line_up() -> None:
    assert table(("id", "reason"), [("1", "short"), ("200", "x")]) == ["id   reason", "1    short", "200  x"]
