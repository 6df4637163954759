"""What a terminal shows never obeys the wire."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from bus.cli.render import clean, table


@given(st.text())
def test_no_control_character_reaches_the_terminal(text: str) -> None:
    assert not [char for char in clean(text) if unicodedata.category(char)[0] == "C"]


def test_columns_line_up() -> None:
    assert table(("id", "reason"), [("1", "short"), ("200", "x")]) == ["id   reason", "1    short", "200  x"]
