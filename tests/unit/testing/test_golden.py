"""`check_chain`: what a test of golden samples finds (SCH-4)."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel

from bus import Agent
from bus.testing import check_chain


class Note(BaseModel):
    __contract__ = "note@3.0"
    heading: str
    tags: list[str] = []


def reader() -> Agent:
    agent = Agent("reader")

    @agent.on("note")
    async def note(payload: Note) -> None: ...

    @agent.upcast("note", 2)
    def tagged(payload: dict[str, Any]) -> dict[str, Any]:
        payload["tags"] = [payload.pop("tag")]
        return payload

    return agent


def test_good_samples_give_what_the_handler_gets() -> None:
    agent = reader()

    @agent.upcast("note", 1)
    def headed(payload: dict[str, Any]) -> dict[str, Any]:
        return {"heading": payload["title"], "tag": "old"}

    samples = {"1.0": [{"title": "Fog"}], "2.0": [{"heading": "Sea", "tag": "salt"}], "3.0": [{"heading": "Sky"}]}
    assert check_chain(agent, "note", samples) == {
        "1.0": [Note(heading="Fog", tags=["old"])],
        "2.0": [Note(heading="Sea", tags=["salt"])],
        "3.0": [Note(heading="Sky")],
    }


def test_everything_that_is_wrong_is_told() -> None:
    agent, counter = reader(), itertools.count()

    @agent.upcast("note", 1)
    def bad(payload: dict[str, Any]) -> dict[str, Any]:
        match payload["title"]:
            case "impure":
                return {"heading": str(next(counter)), "tag": "x"}
            case "not JSON":
                return {"heading": "x", "tag": "x", "at": datetime.now(UTC)}
        return {"heading": 7, "tag": "x"}

    samples = [{"title": "impure"}, {"title": "not JSON"}, {"title": "refused"}, {}]
    with pytest.raises(AssertionError) as found:
        check_chain(agent, "note", {"1.0": samples, "3.0": []})
    lines = str(found.value).splitlines()
    assert len(lines) == 6
    for line, part in zip(
        lines,
        [
            "note@2: there is no sample of this major",
            "note@1.0 sample 0: read twice it gives two things",
            "note@1.0 sample 1: the upcast payload is not JSON",
            "note@1.0 sample 2: the payload is not a Note: payload.heading",
            "note@1.0 sample 3: the payload of note@1.0 does not pass the upcaster note 1 to 2",
            "note@3.0: its list of samples is empty",
        ],
        strict=True,
    ):
        assert part in line


def test_it_needs_a_handler_that_says_its_version() -> None:
    with pytest.raises(ValueError, match="says its version"):
        check_chain(Agent("reader"), "note", {})
