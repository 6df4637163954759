"""What a new contract does to one reader, once it has said how it reads (SCH-5)."""

from __future__ import annotations

from typing import Any

import pytest

from bus.contracts.version import ContractVersion
from bus.registry.impact import Effect, Schema, effect_on
from bus.registry.readers import Reader

READS: dict[str, Any] = {"type": "object", "required": ["heading"]}


def judge(reader: Schema, new: Schema) -> list[str]:
    """A judge that knows one rule: what the reader requires must be required."""
    assert isinstance(reader, dict)
    assert isinstance(new, dict)
    missing = set(reader["required"]) - set(new.get("required", []))
    return [f"{name}: old readers require it" for name in sorted(missing)]


@pytest.mark.parametrize(
    ("reader", "new", "version", "effect", "reason"),
    [
        (((2,), READS), READS, None, Effect.SAFE, ""),
        (((2,), READS), {}, None, Effect.BREAKS, "heading: old readers require it"),
        (((2,), READS), {}, "2.4", Effect.BREAKS, "heading"),
        (((1, 2), READS), READS, "3.0", Effect.BREAKS, "it accepts majors 1, 2, not note@3.0"),
        (((1, 2), READS), READS, "1.7", Effect.UNKNOWN, "its upcasters read major 1"),
        (((2,), None), READS, None, Effect.UNKNOWN, "names no model"),
        ((None, READS), READS, "9.0", Effect.SAFE, ""),
        ((None, None), READS, "9.0", Effect.UNKNOWN, "names no model"),
    ],
)
def test_the_effect_on_one_reader(
    reader: tuple[tuple[int, ...] | None, Any], new: Schema, version: str | None, effect: Effect, reason: str
) -> None:
    majors, schema = reader
    one = Reader("reader", ("r1", "r2"), "note@2.1", majors, schema)
    found = effect_on(one, new, judge, None if version is None else ContractVersion.of_type("note", version))
    assert (found.effect, found.replicas, found.reads) == (effect, 2, "note@2.1")
    assert reason in " ".join(found.reasons)
