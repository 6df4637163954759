"""A catalogue in a folder of each test's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bus.contracts.catalogue import Catalogue, digest

Written = Callable[..., Catalogue]


def note(**properties: Any) -> dict[str, Any]:
    """A contract that no rule complains about; `properties` are added to its one field."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Note",
        "description": "Somebody to anybody: a text.",
        "type": "object",
        "properties": {"text": {"type": "string", "description": "What it says."}, **properties},
        "required": ["text"],
        "examples": [{"text": "hi"}],
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "schemas"
    found.mkdir()
    return found


@pytest.fixture
def written(folder: Path) -> Written:
    """`written({"note/1.0.json": schema}, released=["note/1.0.json"])`: writes and reads the catalogue."""

    def write(files: dict[str, Any], *, released: list[str] | None = None, **entry: Any) -> Catalogue:
        contracts: dict[str, Any] = {}
        for path, content in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            data = content if isinstance(content, bytes) else json.dumps(content, indent=2).encode()
            target.write_bytes(data)
            type, _, name = path.partition("/")
            if path in (released or []):
                known = contracts.setdefault(type, {"owner": "desk", "versions": {}} | entry)
                known["versions"][name.removesuffix(".json")] = {"sha256": digest(data), "released": "2026-01-31"}
        if contracts:
            (folder / "lock.json").write_text(json.dumps({"format": 1, "contracts": contracts}))
        return Catalogue.read(folder)

    return write
