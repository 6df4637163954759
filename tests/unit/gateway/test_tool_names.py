"""Names of capabilities as names of tools (TOOL-4)."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.calls.card import is_capability_name
from bus.gateway.tool_names import ToolNames, tool_name

words = st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True)
names = st.lists(words, min_size=2, max_size=7).map(".".join).filter(is_capability_name)


@given(st.sets(names, max_size=20))
def test_every_name_is_taken_by_the_providers_and_leads_back(capabilities: set[str]) -> None:
    """TOOL-4: a reversible map."""
    found = ToolNames.of(capabilities)
    assert len(set(found.tools.values())) == len(capabilities)
    for capability, tool in found.tools.items():
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", tool)
        assert found.capabilities[tool] == capability


def test_cutting_the_tail_does_not_collide() -> None:
    """TOOL-4: names that differ only beyond the 64th character."""
    long = "a_very_long_name_of_a_room.and_a_very_long_name_of_what_it_can_do_for"
    found = ToolNames.of([f"{long}_{last}" for last in ("you", "me", "us", "them")])
    assert len(found.capabilities) == 4
    assert all(len(tool) == 64 for tool in found.capabilities)


@pytest.mark.parametrize(
    ("capability", "tool"),
    [
        ("calculator.add", "calculator-add"),
        ("calculator_add.x", "calculator_add-x"),
        ("calculator.add_x", "calculator-add_x"),
        ("a" * 31 + "." + "b" * 32, "a" * 31 + "-" + "b" * 32),
        ("a" * 31 + "." + "b" * 33, "a" * 31 + "-" + "b" * 18 + "--2c6aeb51bda0"),
    ],
)
def test_names_as_they_are(capability: str, tool: str) -> None:
    """TOOL-4: pinned, because conversations outlive processes and releases."""
    assert tool_name(capability) == tool


def test_names_do_not_depend_on_the_process() -> None:
    """TOOL-4: deterministic over processes."""
    name = "long." * 20 + "name"
    code = f"from bus.gateway.tool_names import tool_name; print(tool_name({name!r}))"
    said = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True, text=True, check=True, timeout=25,
        ).stdout.strip()
        for seed in ("1", "2")
    }  # fmt: skip
    assert said == {tool_name(name)}
