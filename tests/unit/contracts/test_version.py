"""`draft_request@2.1`: read, written, and found on a model (SCH-4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from bus.contracts.version import ContractVersion, version_of
from bus.envelope import Envelope
from bus.errors import Rejected


@given(
    type=st.from_regex(r"[a-z][a-z0-9_]{0,63}", fullmatch=True),
    major=st.integers(0, 999_999),
    minor=st.integers(0, 999_999),
)
def test_what_is_written_is_read_again(type: str, major: int, minor: int) -> None:
    version = ContractVersion(type, major, minor)
    assert ContractVersion.parse(str(version)) == version
    assert ContractVersion.of_type(type, f"{major}.{minor}") == version


@given(st.text() | st.from_regex(r"[a-z_]{1,4}@[0-9]{1,7}\.[0-9]{1,7}\n?", fullmatch=True))
def test_it_reads_what_the_extension_allows(text: str) -> None:
    try:
        Envelope(sender="a", to="b", type="note", extensions={"schema": text})
        allowed = True
    except Rejected:
        allowed = False
    try:
        ContractVersion.parse(text)
        read = True
    except ValueError:
        read = False
    assert read == allowed


def test_a_model_says_its_own_version() -> None:
    class Note(BaseModel):
        __contract__ = "note@2.1"
        text: str

    class Longer(Note):
        more: str

    class Wrong(BaseModel):
        __contract__ = "note 2"

    class Odd(BaseModel):
        __contract__ = 2.1

    assert version_of(Note) == ContractVersion("note", 2, 1)
    assert version_of(Longer) is None
    assert "__contract__" not in Note(text="x").model_dump()
    for model in (Wrong, Odd):
        with pytest.raises(ValueError, match=f"{model.__name__}.__contract__"):
            version_of(model)
