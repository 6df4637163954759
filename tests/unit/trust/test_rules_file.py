"""The rules file: what is read, and what is refused with its line (SEC-2)."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.trust.rules import Effect, Rule
from bus.trust.rules_file import RulesError, read_rules

GOOD = b"""
# Who may call what.
[[allow]]
source = ["planner", "writer-*"]
capability = "calculator.*"
target = "alice"
note = "sums for the brief"

[[deny]]
source = "*"
capability = ["calculator.divide", "pay.*"]
"""


def test_rules_are_read_with_their_lines() -> None:
    """SEC-2."""
    assert read_rules(GOOD).rules == (
        Rule(Effect.ALLOW, ("planner", "writer-*"), ("calculator.*",), ("alice",), 3, "sums for the brief"),
        Rule(Effect.DENY, ("*",), ("calculator.divide", "pay.*"), ("*",), 9),
    )


def test_an_empty_file_denies_everything() -> None:
    """SEC-2: denied by default once a file is given."""
    rules = read_rules(b"")
    assert not rules.permits(["a"], "calc.add", "b")


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (b"[[allow]]\nsource = 'a'\ncapabilty = 'calc.add'\n", 3, "'capabilty' is none of"),
        (b"[[allow]]\nsource = 'a'\n", 1, "capability is missing"),
        (b"\n[[allow]]\ncapability = '*'\n", 2, "source is missing"),
        (b"[[allow]]\nsource = 'a b'\ncapability = '*'\n", 2, "'a b' is no agent"),
        (b"[[allow]]\nsource = ['a', 3]\ncapability = '*'\n", 2, "3 is no agent"),
        (b"[[allow]]\nsource = []\ncapability = '*'\n", 2, "0 patterns"),
        (b"[[deny]]\nsource = 'a'\n\n[[allow]]\nsource = 'a'\ncapability = 'calc*'\n", 6, "no family"),
        (b"[[allow]]\nsource = 'a'\ncapability = 'calc*'\n", 3, "no family such as"),
        (b"[[allow]]\nsource = 'a'\ncapability = '*'\ntarget = {}\n", 4, "{} is no agent"),
        (b"[[allow]]\nsource = 'a'\ncapability = '*'\nnote = 3\n", 4, "note is no text"),
        (b"[allow]\nsource = 'a'\ncapability = '*'\n", 1, "write [[allow]] in two brackets"),
        (b"[[allow]]\nsource = 'a'\ncapability = '*'\n[[alow]]\nx = 1\n", 4, "neither [[allow]] nor [[deny]]"),
        (b"default = 'allow'\n", 1, "neither [[allow]] nor [[deny]]"),
        (b"allow = [3]\n", 0, "a rule has source"),
        (b"[[allow]]\nsource = \n", 2, "not TOML"),
        (b"[[allow]\n", 1, "not TOML"),
        (b"[[allow]]\nsource = 'a", 2, "not TOML"),
        (b"# fine\n\xff\xfe", 2, "not UTF-8"),
        (b"#" * (1 << 21), 0, "the limit is"),
        (b"\x00", 1, "not TOML"),
    ],
)
def test_what_is_refused_and_where(text: bytes, line: int, says: str) -> None:
    """SEC-2: a slip must not make a rule wider, and its writer hears where it is."""
    with pytest.raises(RulesError) as refused:
        read_rules(text)
    assert says in str(refused.value)
    assert refused.value.line == line


@given(st.binary(max_size=300))
def test_garbage_is_refused_and_nothing_else_happens(data: bytes) -> None:
    """SEC-7."""
    for text in (data, GOOD + data, GOOD[: len(data)]):
        with contextlib.suppress(RulesError):
            read_rules(text)
