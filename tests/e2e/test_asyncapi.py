"""SCH-5: the AsyncAPI document of our catalogue passes the official parser."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT

PARSER = ROOT / "build" / "asyncapi" / "node_modules" / "@asyncapi" / "parser"
PARSE = """
const { Parser } = require(process.argv[1]);
const text = require("node:fs").readFileSync(process.argv[2], "utf8");
new Parser().parse(text).then(({ document, diagnostics }) => {
  const operations = document ? document.operations().all().map((one) => [one.id(), one.action()]) : null;
  const messages = document ? document.messages().all().length : 0;
  console.log(JSON.stringify({ diagnostics, operations, messages }));
});
"""

pytestmark = [pytest.mark.node, pytest.mark.timeout(90)]


def parsed(document: Path) -> dict[str, object]:
    assert PARSER.is_dir(), "the AsyncAPI parser is missing; run make asyncapi"
    done = subprocess.run(
        ["node", "-e", PARSE, str(PARSER), str(document)], capture_output=True, text=True, timeout=80, check=True
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def problems(found: dict[str, object]) -> list[tuple[str, str]]:
    diagnostics = found["diagnostics"]
    assert isinstance(diagnostics, list)
    # 0 is an error, 1 a warning; hints say that a later version of AsyncAPI exists.
    return [(one["code"], one["message"]) for one in diagnostics if one["severity"] <= 1]


def test_the_official_parser_has_no_complaint(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "bus", "schema", "docs", "--out", str(tmp_path)], cwd=ROOT, check=True, timeout=25
    )
    found = parsed(tmp_path / "asyncapi.json")
    assert problems(found) == []
    assert found["messages"] == 7
    operations = found["operations"]
    assert isinstance(operations, list)
    assert ["writer.sends.reviewer.review_request", "send"] in operations


def test_the_parser_would_complain(tmp_path: Path) -> None:
    broken = {"asyncapi": "3.0.0", "info": {"title": "x"}, "channels": {"a": {"messages": {"m": {"$ref": "#/no"}}}}}
    (tmp_path / "broken.json").write_text(json.dumps(broken))
    assert problems(parsed(tmp_path / "broken.json")) != []
