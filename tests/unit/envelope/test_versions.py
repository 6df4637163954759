"""Which versions are read (ENV-3)."""

import pytest

from bus.envelope import CURRENT, SUPPORTED, Envelope, versions
from bus.errors import Advice, Rejected


def test_the_current_version_is_supported() -> None:
    """ENV-3."""
    assert CURRENT == "1.2"
    assert frozenset({"1.2"}) == SUPPORTED
    versions.check({"version": CURRENT})


@pytest.mark.parametrize("version", ["1.1", "1.3", "2.0", "", "1.2 ", "v1.2", "x" * 10_000])
def test_an_unknown_version_is_rejected_with_the_supported_ones(version: str) -> None:
    """ENV-3: whatever else the message holds."""
    with pytest.raises(Rejected) as caught:
        Envelope.from_fields({"version": version, "from": 7})
    info = caught.value.info
    assert info.code == "protocol.unsupported_version"
    assert info.details == {"version": version[:64], "supported": ["1.2"]}
    assert info.advice is Advice.RENEGOTIATE
    assert "1.2" in info.message
    assert len(info.message) < 200


@pytest.mark.parametrize("fields", [{}, {"version": None}, {"version": 1.2}, {"version": ["1.2"]}, {"version": {}}])
def test_no_version_or_one_of_another_type_is_malformed(fields: dict[str, object]) -> None:
    """ENV-3."""
    with pytest.raises(Rejected) as caught:
        Envelope.from_fields(fields)
    assert caught.value.info.code == "protocol.malformed"
    assert caught.value.info.details["path"] == "version"
