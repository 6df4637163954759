"""Texts with places to fill in (REG-11)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.gateway.template import Template, written


def fill(text: str, **arguments: object) -> str | None:
    return Template.parse(text, {"KEY": "k{x}"}).fill(arguments, lambda _, value: written(value))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("", ""), ("a", "a"), ("{x}", "1"), ("a{x}b{y}", "1".join(["a", "btext"])), ("{{x}}", "{x}"), ("{n}", None),
     ("{absent}", None), ("${KEY}{x}", "k{x}1"), ("{l}", "[1,2]"), ("$5 {x}", "$5 1")],
)  # fmt: skip
def test_filling(text: str, wanted: str | None) -> None:
    """REG-11: what comes from the environment is never read as a template."""
    assert fill(text, x=1, y="text", n=None, l=[1, 2]) == wanted


@pytest.mark.parametrize("text", ["{", "}", "{1}", "{a b}", "a}b", "{x"])
def test_lone_braces_are_refused(text: str) -> None:
    """REG-11."""
    with pytest.raises(ValueError, match="lone"):
        Template.parse(text, {})


@given(st.text())
def test_any_text_can_be_written(text: str) -> None:
    """REG-11."""
    escaped = text.replace("{", "{{").replace("}", "}}").replace("${{", "${{")
    if "${" not in text:
        assert Template.parse(escaped, {}).fill({}, lambda _, value: str(value)) == text
