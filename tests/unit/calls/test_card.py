"""Cards: what is refused, all reasons at once, and which versions fit (REG-1, REG-9)."""

from __future__ import annotations

from typing import Any

import pytest

from bus import Agent, Card, RegistryError

GOOD: dict[str, Any] = {
    "name": "weather.query",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "example": {"city": "Bern"},
}


def test_a_bad_card_is_refused_with_every_reason_at_once() -> None:
    bad = {
        "name": "Weather",
        "description": " ",
        "input_schema": {"type": "objekt"},
        "output_schema": {"$ref": "http://127.0.0.1:9/schema"},
        "timeout_s": 0,
        "idempotent": "yes",
        "version": "1",
        "accepts": ["one"],
    }
    with pytest.raises(RegistryError) as refused:
        Card.checked(bad)
    assert refused.value.info.code == "registry.invalid_card"
    assert {one["path"] for one in refused.value.info.details["problems"]} == set(bad)


def test_an_example_that_its_own_schema_refuses_is_refused() -> None:
    with pytest.raises(RegistryError, match=r"example `city` is missing"):
        Card.checked({**GOOD, "example": {"citi": "Bern"}})


def test_a_decorated_function_with_a_bad_example_is_refused_at_once() -> None:
    agent = Agent("a")
    with pytest.raises(RegistryError, match=r"example\.a"):

        @agent.capability("calculator.add", description="Adds.", example={"a": "x", "b": 1})
        async def add(a: int, b: int) -> int:
            return a + b


def test_equal_cards_have_equal_digests_and_a_digest_survives_the_wire() -> None:
    card = Card.checked(GOOD)
    assert Card.checked(card.to_wire()).digest == card.digest
    assert Card.checked({**GOOD, "timeout_s": 11.0}).digest != card.digest


@pytest.mark.parametrize(
    ("version", "accepts", "wanted", "fits"),
    [
        ("1.4.0", (), None, True),
        ("1.4.0", (), "1", True),
        ("1.4.0", (), "1.4", True),
        ("1.4.0", (), "1.5", False),
        ("2.0.0", (), "1.4", False),
        ("2.0.0", ("1.4.0",), "1.4", True),
        ("0.4.0", (), "0.3", False),
        ("0.4.1", (), "0.4.0", True),
        ("0.4.1", (), "0", True),
    ],
)
def test_versions_fit_by_semver(version: str, accepts: tuple[str, ...], wanted: str | None, fits: bool) -> None:
    assert Card.checked({**GOOD, "version": version, "accepts": accepts}).serves(wanted) is fits
