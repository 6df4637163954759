"""The documents of a catalogue: an AsyncAPI 3 document, Markdown, HTML (SCH-5)."""

from __future__ import annotations

from pathlib import Path

from bus.contracts.asyncapi import asyncapi
from bus.contracts.catalogue import Catalogue, CatalogueError
from bus.contracts.json_text import dump
from bus.contracts.markdown import markdown
from bus.contracts.page import page
from bus.contracts.sheet import sheet_of


def write_docs(catalogue: Catalogue, out: Path, *, title: str) -> list[Path]:
    """Writes `asyncapi.json`, `contracts.md` and `contracts.html` into a folder, which is made, and gives their paths.

    The same catalogue gives the same bytes. Raises CatalogueError when they cannot be written.
    """
    sheets = [sheet_of(contract) for contract in catalogue.contracts.values()]
    files = {
        "asyncapi.json": dump(asyncapi(catalogue, title=title)),
        "contracts.md": markdown(sheets, title=title).encode(),
        "contracts.html": page(sheets, title=title).encode(),
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (out / name).write_bytes(data)
    except OSError as problem:
        raise CatalogueError(f"{out} cannot be written: {problem.strerror}; --out names a folder") from None
    return [out / name for name in files]
