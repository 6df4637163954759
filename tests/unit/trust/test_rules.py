"""Rules: the decision against a naive model, sensitive capabilities, chains (SEC-2)."""

from __future__ import annotations

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.trust.rule_findings import Known, strangers, unreachable
from bus.trust.rules import Effect, Rule, RuleSet, agent_problem, capability_problem

AGENTS = ["a", "ab", "abc", "b", "b-1", "x_y"]
AGENT_PATTERNS = [*AGENTS, "*", "a*", "ab*", "b-*", "x_*"]
CAPABILITIES = ["calc.add", "calc.sub", "calc.deep.add", "calculator.add", "pay.refund"]
CAPABILITY_PATTERNS = [*CAPABILITIES, "*", "calc.*", "calc.deep.*", "pay.*"]


def some(values: list[str]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True).map(tuple)


RULES = st.lists(
    st.builds(Rule, st.sampled_from(Effect), some(AGENT_PATTERNS), some(CAPABILITY_PATTERNS), some(AGENT_PATTERNS)),
    max_size=8,
)
ASKED = st.tuples(st.sampled_from(AGENTS), st.sampled_from(CAPABILITIES), st.sampled_from(AGENTS), st.booleans())


def naive(rules: list[Rule], source: str, capability: str, target: str, sensitive: bool) -> bool:
    """The sentence of the specification, word by word."""

    def concerned(rule: Rule) -> bool:
        return all(
            any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
            for name, patterns in ((source, rule.sources), (capability, rule.capabilities), (target, rule.targets))
        )

    if any(concerned(rule) for rule in rules if rule.effect == "deny"):
        return False
    allowing = [rule for rule in rules if rule.effect == "allow" and concerned(rule)]
    return any(capability in rule.capabilities for rule in allowing) if sensitive else bool(allowing)


@given(RULES, st.lists(ASKED, min_size=1, max_size=20))
def test_decisions_are_those_of_a_naive_model_also_when_they_are_remembered(
    rules: list[Rule], asked: list[tuple[str, str, str, bool]]
) -> None:
    """SEC-2: denied by default, a deny beats every allow, a sensitive capability is named in full."""
    compiled = RuleSet(rules)
    for source, capability, target, sensitive in asked * 2:
        found = compiled.decide(source, capability, target, sensitive=sensitive)
        assert found.is_allowed is naive(rules, source, capability, target, sensitive)
        assert (found.rule is None) <= (not found.is_allowed)


@given(RULES, st.lists(st.sampled_from(AGENTS), min_size=1, max_size=4), ASKED)
def test_a_chain_can_only_narrow(rules: list[Rule], chain: list[str], asked: tuple[str, str, str, bool]) -> None:
    """SEC-2: everybody on whose behalf is acted must be allowed too."""
    _, capability, target, sensitive = asked
    compiled = RuleSet(rules)
    each = [naive(rules, one, capability, target, sensitive) for one in chain]
    assert compiled.permits(chain, capability, target, sensitive=sensitive) is all(each)
    assert bool(compiled.refusal(chain, capability, target, sensitive=sensitive)) is not all(each)


@given(RULES, RULES, ASKED)
def test_order_means_nothing(some: list[Rule], more: list[Rule], asked: tuple[str, str, str, bool]) -> None:
    """SEC-2: a reviewer may read the rules in any order."""
    *names, sensitive = asked
    one, other = RuleSet([*some, *more]), RuleSet([*more, *some])
    assert one.decide(*names, sensitive=sensitive).is_allowed is other.decide(*names, sensitive=sensitive).is_allowed


@given(RULES, st.lists(ASKED, min_size=1, max_size=40))
def test_a_rule_that_is_called_unreachable_changes_no_decision(
    rules: list[Rule], asked: list[tuple[str, str, str, bool]]
) -> None:
    """SEC-2: `bus rules check` must not talk anybody into removing a rule that counts."""
    numbered = [Rule(one.effect, one.sources, one.capabilities, one.targets, n) for n, one in enumerate(rules, 1)]
    for finding in unreachable(tuple(numbered)):
        without = RuleSet(rule for rule in numbered if rule.line != finding.line)
        for *names, sensitive in asked:
            before = RuleSet(numbered).decide(*names, sensitive=sensitive).is_allowed
            assert without.decide(*names, sensitive=sensitive).is_allowed is before, finding


def test_what_is_unreachable_is_told_with_the_rule_that_makes_it_so() -> None:
    """SEC-2."""
    rules = (
        Rule(Effect.ALLOW, ("*",), ("calc.*",), line=1),
        Rule(Effect.ALLOW, ("a",), ("calc.deep.*",), line=2),
        Rule(Effect.ALLOW, ("a",), ("calc.add",), line=3),
        Rule(Effect.DENY, ("*",), ("pay.*",), line=4),
        Rule(Effect.DENY, ("b",), ("calc.sub",), line=5),
        Rule(Effect.ALLOW, ("b",), ("calc.sub",), line=6),
        Rule(Effect.ALLOW, ("b",), ("calc.sub",), line=7),
        Rule(Effect.ALLOW, ("x*",), ("calc.*",), line=8),
    )
    found = {one.line: one.problem for one in unreachable(rules)}
    assert "line 1" in found[2]
    assert 3 not in found, "it names a capability that may be sensitive"
    assert "nothing that it denies is allowed" in found[4]
    assert "line 5" in found[6]
    assert "line 5" in found[7]
    assert set(found) == {2, 4, 6, 7, 8}


def test_of_two_equal_rules_only_the_later_is_idle() -> None:
    """SEC-2."""
    same = [Rule(Effect.ALLOW, ("a",), ("calc.add",), line=line) for line in (1, 2)]
    assert [one.line for one in unreachable(tuple(same))] == [2]


def test_names_that_nobody_knows_are_told() -> None:
    """SEC-2."""
    rules = (Rule(Effect.ALLOW, ("a", "z-*"), ("calc.*", "pay.refund"), ("*",), 3),)
    found = [one.problem for one in strangers(rules, Known(["a"], ["calc.add"]))]
    assert [problem.partition(";")[0] for problem in found] == [
        "nobody offers pay.refund now",
        "no agent z-* is known",
    ]


@pytest.mark.parametrize("pattern", ["", "a b", "a*b", "**", "*a", "a.b", "é", None, 3, ["a"], "a" * 65])
def test_what_is_no_pattern_of_agents(pattern: object) -> None:
    """SEC-2."""
    assert agent_problem(pattern) is not None


@pytest.mark.parametrize("pattern", ["", "add", "calc.a*", "calc*", "*.add", "calc.**", "Calc.add", ".*", None, 3, {}])
def test_what_is_no_pattern_of_capabilities(pattern: object) -> None:
    """SEC-2: a family is whole words, so that `calc.*` cannot be mistaken for `calculator.add`."""
    assert capability_problem(pattern) is not None


def test_strangers_names_do_not_fill_the_memory() -> None:
    """SEC-7."""
    rules = RuleSet([Rule(Effect.ALLOW, ("*",), ("*",))])
    for number in range(70_000):
        rules.decide(f"a{number}", "calc.add", "b")
    assert len(rules._decided) <= 65_536
