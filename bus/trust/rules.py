"""Rules: who may call which capability of whom (SEC-2). Pure; `rules_file` reads them, `rule_book` keeps them fresh.

Nothing is allowed that no `allow` names, and a `deny` beats every `allow`, in whatever order they stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from bus.envelope.grammar import is_agent_name

ANY = "*"
MAX_DECIDED = 65_536

_CAPABILITY = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)+")
_FAMILY = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*\.\*")


class Effect(StrEnum):
    """What a rule does."""

    ALLOW = "allow"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry: it concerns the calls that one of its patterns fits in each of the three places.

    `line` is where it stands in its file, 0 when it stands in none; `note` is for people.
    """

    effect: Effect
    sources: tuple[str, ...]
    capabilities: tuple[str, ...]
    targets: tuple[str, ...] = (ANY,)
    line: int = 0
    note: str = ""

    def concerns(self, capability: str, target: str) -> bool:
        """Whether it says something about this capability of this agent, for whoever asks."""
        return _any_fits(self.capabilities, capability) and _any_fits(self.targets, target)

    def is_about(self, source: str) -> bool:
        """Whether it says something about what this agent asks."""
        return _any_fits(self.sources, source)

    def __str__(self) -> str:
        at = f"line {self.line}: " if self.line else ""
        return f"{at}{self.effect} {_told(self.sources)} > {_told(self.capabilities)} of {_told(self.targets)}"


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a call may be made, the rule that decided, and why in words; no rule when none allows it."""

    is_allowed: bool
    rule: Rule | None
    why: str


class RuleSet:
    """Compiled rules. A decision is remembered, so that the next one of its kind is one look into a dict.

    A sensitive capability needs an `allow` that names it in full: `payments.*` and `*` do not open it.
    """

    __slots__ = ("_decided", "_tables", "rules")

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules: tuple[Rule, ...] = tuple(rules)
        self._tables: dict[tuple[str, str], tuple[Rule, ...]] = {}
        self._decided: dict[tuple[str, str, str, bool], Decision] = {}

    def decide(self, source: str, capability: str, target: str, *, sensitive: bool = False) -> Decision:
        """Whether `source` may call `capability` of `target`."""
        key = source, capability, target, sensitive
        found = self._decided.get(key)
        if found is None:
            found = self._decide(source, capability, target, sensitive)
            # Names come from strangers: what they ask for must not fill the memory.
            if len(self._decided) >= MAX_DECIDED:
                self._decided.clear()
            self._decided[key] = found
        return found

    def permits(self, sources: Sequence[str], capability: str, target: str, *, sensitive: bool = False) -> bool:
        """Whether every one of `sources` may: who asks, and all on whose behalf it does."""
        decided = self._decided
        for source in sources:
            found = decided.get((source, capability, target, sensitive))
            if found is None:
                found = self.decide(source, capability, target, sensitive=sensitive)
            if not found.is_allowed:
                return False
        return True

    def refusal(self, sources: Sequence[str], capability: str, target: str, *, sensitive: bool = False) -> str:
        """Why not, in words, with the name that is not allowed; empty when all are."""
        for source in sources:
            found = self.decide(source, capability, target, sensitive=sensitive)
            if not found.is_allowed:
                return f"{source}: {found.why}"
        return ""

    def _decide(self, source: str, capability: str, target: str, sensitive: bool) -> Decision:
        about = [rule for rule in self._table(capability, target) if rule.is_about(source)]
        for rule in about:
            if rule.effect is Effect.DENY:
                return Decision(False, rule, f"denied by {rule}")
        if not about:
            return Decision(False, None, "no rule allows it")
        for rule in about:
            if not sensitive or capability in rule.capabilities:
                return Decision(True, rule, f"allowed by {rule}")
        return Decision(False, None, f"{capability} is sensitive, and no rule that allows it names it in full")

    def _table(self, capability: str, target: str) -> tuple[Rule, ...]:
        """The rules that concern a capability of an agent, whoever asks."""
        key = capability, target
        found = self._tables.get(key)
        if found is None:
            found = tuple(rule for rule in self.rules if rule.concerns(capability, target))
            if len(self._tables) >= MAX_DECIDED:
                self._tables.clear()
            self._tables[key] = found
        return found


def agent_problem(pattern: object) -> str | None:
    """What is wrong with a pattern for agents: a name, the beginning of names and `*`, or `*`."""
    if isinstance(pattern, str) and (
        is_agent_name(pattern) or pattern == ANY or (pattern.endswith(ANY) and is_agent_name(pattern[:-1]))
    ):
        return None
    return f"{pattern!r} is no agent, no beginning of agents such as writer-*, and not *"


def capability_problem(pattern: object) -> str | None:
    """What is wrong with a pattern for capabilities: a name, whole words of names and `.*`, or `*`."""
    if isinstance(pattern, str) and (
        pattern == ANY or _CAPABILITY.fullmatch(pattern) is not None or _FAMILY.fullmatch(pattern) is not None
    ):
        return None
    return f"{pattern!r} is no capability, no family such as calculator.*, and not *"


def fits(pattern: str, name: str) -> bool:
    """Whether a pattern fits a name: they are equal, or the name begins with what stands before its `*`."""
    return pattern == name or (pattern[-1:] == ANY and name.startswith(pattern[:-1]))


def covers(wide: str, narrow: str) -> bool:
    """Whether `wide` fits every name that `narrow` fits."""
    return fits(wide, narrow)


def overlap(one: str, other: str) -> bool:
    """Whether some name fits both."""
    return fits(one, other.removesuffix(ANY)) or fits(other, one.removesuffix(ANY))


def _any_fits(patterns: tuple[str, ...], name: str) -> bool:
    return any(fits(pattern, name) for pattern in patterns)


def _told(patterns: tuple[str, ...]) -> str:
    return ", ".join(patterns) if len(patterns) <= 3 else f"{', '.join(patterns[:3])} and {len(patterns) - 3} more"
