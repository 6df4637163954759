"""The public names are pinned: a new one is a decision, a lost one is a breaking change."""

import bus


def test_the_sorted_public_names() -> None:
    assert bus.__all__ == [
        "Agent",
        "ArtifactRef",
        "BrokerError",
        "Bus",
        "BusError",
        "DeadLetter",
        "Draft",
        "Envelope",
        "ErrorInfo",
        "Message",
        "Outcome",
        "PermanentFailure",
        "RegistryError",
        "Rejected",
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
