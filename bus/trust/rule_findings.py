"""Findings about rules: what never has an effect, and what names nobody that is known."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from bus.trust.rules import ANY, Effect, Rule, covers, fits, overlap


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """One thing about one rule that its writer probably did not mean."""

    line: int
    rule: str
    problem: str


@dataclass(frozen=True, slots=True)
class Known:
    """The names that a bus knows."""

    agents: Collection[str]
    capabilities: Collection[str]


def unreachable(rules: tuple[Rule, ...]) -> Iterator[RuleFinding]:
    """Rules that change no decision, each with the rule that makes it so."""
    allows = [rule for rule in rules if rule.effect is Effect.ALLOW]
    denies = [rule for rule in rules if rule.effect is Effect.DENY]
    for index, rule in enumerate(rules):
        wider = next((deny for deny in denies if deny is not rule and _covers(deny, rule)), None)
        if wider is not None and (rule.effect is Effect.ALLOW or not _is_first_of_two(rule, wider, rules, index)):
            yield _finding(rule, f"never has an effect: {wider} covers it")
        elif rule.effect is Effect.DENY and not any(_meet(rule, allow) for allow in allows):
            yield _finding(rule, "never has an effect: nothing that it denies is allowed")
        elif rule.effect is Effect.ALLOW:
            same = next((one for one in allows if one is not rule and _opens_all(one, rule)), None)
            if same is not None and not _is_first_of_two(rule, same, rules, index):
                yield _finding(rule, f"adds nothing: {same} allows all of it")


def strangers(rules: tuple[Rule, ...], known: Known) -> Iterator[RuleFinding]:
    """Patterns that fit nothing that the bus knows: a slip, or somebody who is not running."""
    for rule in rules:
        for pattern in rule.capabilities:
            if pattern != ANY and not any(fits(pattern, name) for name in known.capabilities):
                yield _finding(rule, f"nobody offers {pattern} now")
        for pattern in dict.fromkeys([*rule.targets, *rule.sources]):
            if pattern != ANY and not any(fits(pattern, name) for name in known.agents):
                yield _finding(rule, f"no agent {pattern} is known; clients are not, before they have called")


def _finding(rule: Rule, problem: str) -> RuleFinding:
    return RuleFinding(rule.line, str(rule), problem)


def _covers(wide: Rule, narrow: Rule) -> bool:
    return all(
        any(covers(one, pattern) for one in these) for these, those in _places(wide, narrow) for pattern in those
    )


def _opens_all(wide: Rule, narrow: Rule) -> bool:
    """As `_covers`; but a name in full opens a sensitive capability, which no pattern does."""
    named = [one for one in narrow.capabilities if not one.endswith(ANY)]
    return _covers(wide, narrow) and set(named) <= set(wide.capabilities)


def _meet(one: Rule, other: Rule) -> bool:
    return all(any(overlap(this, that) for this in these for that in those) for these, those in _places(one, other))


def _places(one: Rule, other: Rule) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    yield one.sources, other.sources
    yield one.capabilities, other.capabilities
    yield one.targets, other.targets


def _is_first_of_two(rule: Rule, other: Rule, rules: tuple[Rule, ...], index: int) -> bool:
    """Of two rules that say the same only the later one is idle."""
    return _covers(rule, other) and index < next(at for at, one in enumerate(rules) if one is other)
