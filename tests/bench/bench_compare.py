"""How long a whole catalogue takes: 500 contracts with 5 versions each, every version against all before it."""

from __future__ import annotations

import time
from typing import Any

from bus.contracts.compare import compare_many, prepare

CONTRACTS = 500
VERSIONS = 5
FIELDS = 12


def contract(number: int, version: int) -> dict[str, Any]:
    """A contract as pydantic writes it: fields of every kind, a nested list, and one optional field more a version."""
    item = {
        "type": "object",
        "title": "Item",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 200},
            "score": {"type": "number", "minimum": 0},
            "parent": {"anyOf": [{"$ref": "#/$defs/Item"}, {"type": "null"}], "default": None},
        },
        "required": ["name", "score"],
    }
    kinds: list[dict[str, Any]] = [
        {"type": "string", "maxLength": 100 + number},
        {"type": "integer", "minimum": 0},
        {"enum": ["low", "normal", "high"], "type": "string"},
        {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}], "default": None},
        {"type": "array", "items": {"$ref": "#/$defs/Item"}, "maxItems": 32},
    ]
    fields = {f"field_{n}": {**kinds[n % len(kinds)], "description": f"Field {n}."} for n in range(FIELDS + version)}
    return {
        "$defs": {"Item": item},
        "type": "object",
        "title": f"Contract{number}",
        "properties": fields,
        "required": [f"field_{n}" for n in range(0, FIELDS, 2)],
    }


def main() -> None:
    """Print the time of the whole and of one comparison."""
    catalogue = [[contract(number, version) for version in range(VERSIONS)] for number in range(CONTRACTS)]
    started = time.perf_counter()
    compared = broken = 0
    for versions in catalogue:
        prepared = [prepare(version) for version in versions]
        for at in range(1, VERSIONS):
            verdicts = compare_many(prepared[:at], prepared[at])
            compared += len(verdicts)
            broken += sum(not verdict.compatible for verdict in verdicts)
    elapsed_s = time.perf_counter() - started
    print(f"{CONTRACTS} contracts x {VERSIONS} versions: {compared:,} comparisons in {elapsed_s:.1f} s")
    print(f"{elapsed_s / compared * 1000:.2f} ms each, both directions; {broken} breaking")


if __name__ == "__main__":
    main()
