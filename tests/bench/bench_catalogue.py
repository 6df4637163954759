"""How long `bus schema check` takes for 500 contracts with 5 versions each: reading, checking, linting."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from bus.contracts.catalogue import Catalogue
from bus.contracts.check import check
from bus.contracts.lint import lint

CONTRACTS, VERSIONS = 500, 5
SAMPLES = ("plan_request/1.0", "review_request/2.0", "brief_ready/1.0", "brief_failed/1.0", "draft_request/1.0")
ROOT = Path(__file__).parents[2] / "schemas"


def grown(schema: dict[str, Any], fields: int) -> dict[str, Any]:
    """The schema with so many optional fields more, as minors have them."""
    added = {f"extra_{number}": {"type": "string", "description": "One more."} for number in range(fields)}
    return {**schema, "properties": schema["properties"] | added}


def main() -> None:
    """Writes the catalogue, then prints one line for each step."""
    samples = [json.loads((ROOT / f"{name}.json").read_text("utf-8")) for name in SAMPLES]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(CONTRACTS):
            place = folder / f"contract_{number}"
            place.mkdir()
            for minor in range(VERSIONS):
                schema = grown(samples[number % len(samples)], minor)
                (place / f"1.{minor}.json").write_text(json.dumps(schema, indent=2))
        started = time.perf_counter()
        catalogue = Catalogue.read(folder)
        read = time.perf_counter()
        findings = check(catalogue, workers=os.cpu_count() or 1)
        checked = time.perf_counter()
        for contract in catalogue.contracts.values():
            lint(contract)
        linted = time.perf_counter()
    size = f"{CONTRACTS} contracts of {VERSIONS} versions"
    print(f"read  {size}: {read - started:.2f} s")
    print(f"check {size}, every pair of a major: {checked - read:.2f} s ({len(findings)} findings)")
    print(f"bus schema check in all: {checked - started:.2f} s")
    print(f"lint  {size}: {linted - checked:.2f} s")


if __name__ == "__main__":
    main()
