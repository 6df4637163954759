"""The public names are pinned: a new one is a decision, a lost one is a breaking change."""

import pytest

import bus


def test_the_sorted_public_names() -> None:
    assert bus.__all__ == [
        "Agent",
        "ArtifactRef",
        "BrokerError",
        "Budget",
        "Bus",
        "BusError",
        "Call",
        "CallDraft",
        "Card",
        "Contracts",
        "DeadLetter",
        "Draft",
        "Envelope",
        "ErrorInfo",
        "Message",
        "Outcome",
        "PermanentFailure",
        "RegistryError",
        "Rejected",
        "Result",
        "RetryLater",
        "RetryPolicy",
        "Settings",
        "SettingsError",
        "Sighting",
        "Story",
        "ToolError",
        "Workflow",
    ]
    assert len(bus.__all__) <= 30
    for name in bus.__all__:
        assert getattr(bus, name).__doc__, f"{name} has no docstring"


def test_each_public_name_has_one_home() -> None:
    """They are imported when asked for; what is asked for and does not exist is an ordinary AttributeError."""
    assert sorted(bus._HOMES) == bus.__all__
    assert set(bus.__all__) <= set(dir(bus))
    with pytest.raises(AttributeError, match="nothing"):
        bus.nothing  # noqa: B018
