"""Empty ids and names are wrong use, before any broker is asked (DESIGN, section Command line)."""

from __future__ import annotations

import sys

import pytest

from bus.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["trace", ""], "WORKFLOW_ID"),
        (["tail", "--workflow", ""], "--workflow"),
        (["tail", "--agent="], "--agent"),
        (["dead", "ls", "--code", ""], "--code"),
        (["registry", "show", ""], "agent"),
        (["send", "", "note", "{}"], "to"),
        (["send", "writer", "note", "{}", "--workflow", ""], "--workflow"),
        (["call", "a.b", "{}", "--key", ""], "--key"),
    ],
)
def test_an_empty_text_is_wrong_use(
    arguments: list[str], name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bus", *arguments])
    monkeypatch.setenv("BUS_SERVERS", "nats://127.0.0.1:1")
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().err) == (
        2,
        f"error: {name} is empty; is a variable of your script not set?\n",
    )


def test_an_empty_id_of_a_dead_letter_is_wrong_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bus", "dead", "show", ""])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "valid integer" in capsys.readouterr().err
