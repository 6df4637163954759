"""Settings: environment, keyword arguments, and refusals that name the variable and the range."""

import pytest

from bus import Settings, SettingsError


def test_environment_and_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUS_NAMESPACE", "team")
    monkeypatch.setenv("BUS_ACK_WAIT_S", "5")
    settings = Settings.load(ack_wait_s=7, servers=None)
    assert (settings.namespace, settings.ack_wait_s, settings.servers) == ("team", 7, "")


@pytest.mark.parametrize(
    ("name", "value"), [("BUS_REPLICAS", "0"), ("BUS_ACK_WAIT_S", "soon"), ("BUS_NAMESPACE", "a.b")]
)
def test_a_wrong_value_is_refused_by_name(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=f"{name}='{value}'"):
        Settings.load()


def test_settings_are_frozen() -> None:
    with pytest.raises(Exception, match="frozen"):
        Settings.load().replicas = 3  # type: ignore[misc]


def test_the_server_gives_up_after_the_policy() -> None:
    assert Settings.load(max_attempts=2, max_deliver=3).max_deliver == 3
    with pytest.raises(SettingsError, match=r"BUS_MAX_DELIVER=2: .*greater than BUS_MAX_ATTEMPTS, which is 2"):
        Settings.load(max_attempts=2, max_deliver=2)


def test_one_lost_heartbeat_does_not_end_a_lease() -> None:
    """REG-2."""
    assert Settings.load(heartbeat_s=5, lease_ttl_s=15).lease_ttl_s == 15
    with pytest.raises(SettingsError, match=r"BUS_LEASE_TTL_S=.*three times BUS_HEARTBEAT_S, which is 15"):
        Settings.load(lease_ttl_s=44)
