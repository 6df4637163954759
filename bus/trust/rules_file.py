"""The rules file: TOML text to rules, with the line of whatever is wrong in it (SEC-2).

```toml
[[allow]]
source = ["planner", "writer-*"]
capability = "calculator.*"
target = "alice"
note = "sums for the brief"
```
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from typing import Any

from bus.trust.rules import ANY, Effect, Rule, RuleSet, agent_problem, capability_problem

MAX_BYTES = 1 << 20
MAX_RULES = 10_000
MAX_PATTERNS = 1_000
MAX_NOTE_CHARS = 500

_HEADERS = {effect: re.compile(rf"\s*\[\[\s*{effect}\s*\]\]\s*(?:#.*)?") for effect in Effect}
_ANY_HEADER = re.compile(r"\s*\[")
_MEMBERS: dict[str, Callable[[object], str | None]] = {
    "source": agent_problem,
    "capability": capability_problem,
    "target": agent_problem,
}
_AT = re.compile(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", re.DOTALL)


class RulesError(ValueError):
    """A rules file cannot be used. `line` is where, 0 when that is not known; the message names it."""

    def __init__(self, problem: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {problem}" if line else problem)
        self.line = line


def read_rules(data: bytes) -> RuleSet:
    """The rules of a file. Raises RulesError with one thing that is wrong.

    Everything that is not known is refused: a slip in the name of a member must not make a rule wider.
    """
    if len(data) > MAX_BYTES:
        raise RulesError(f"the file has {len(data)} bytes, the limit is {MAX_BYTES}")
    try:
        text = data.decode()
    except UnicodeDecodeError as problem:
        raise RulesError("this is not UTF-8", data.count(b"\n", 0, problem.start) + 1) from None
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise _not_toml(str(problem), text) from None
    except RecursionError:
        raise RulesError("it is nested too deeply") from None
    lines = text.splitlines()
    if unknown := sorted(set(found) - set(Effect)):
        raise RulesError(f"{unknown[0]!r} is neither [[allow]] nor [[deny]]", _line_of(lines, 0, unknown[0]))
    rules = []
    for effect in Effect:
        entries, header = found.get(effect.value, []), _HEADERS[effect]
        if not isinstance(entries, list):
            raise RulesError(f"write [[{effect}]] in two brackets, once for each rule", _line_of(lines, 0, effect))
        starts = [number for number, line in enumerate(lines, 1) if header.fullmatch(line)]
        # A header inside a text of several lines would count too; then no line is better than a wrong one.
        known = starts if len(starts) == len(entries) else [0] * len(entries)
        rules += [_rule(effect, entry, start, lines) for entry, start in zip(entries, known, strict=True)]
    if len(rules) > MAX_RULES:
        raise RulesError(f"there are {len(rules)} rules, the limit is {MAX_RULES}")
    return RuleSet(sorted(rules, key=lambda rule: rule.line))


def _rule(effect: Effect, entry: Any, start: int, lines: list[str]) -> Rule:
    def wrong(problem: str, member: str = "") -> RulesError:
        at = _line_of(lines, start, member) if start and member else 0
        return RulesError(f"[[{effect}]]: {problem}", at or start)

    if not isinstance(entry, dict):
        raise wrong("a rule has source, capability and target")
    if unknown := sorted(set(entry) - set(_MEMBERS) - {"note"}):
        raise wrong(f"{unknown[0]!r} is none of source, capability, target and note", unknown[0])
    patterns: dict[str, tuple[str, ...]] = {}
    for member, problem_of in _MEMBERS.items():
        value = entry.get(member, ANY if member == "target" else None)
        if value is None:
            raise wrong(f"{member} is missing; write {member} = {ANY!r} for any")
        values = value if isinstance(value, list) else [value]
        if not 0 < len(values) <= MAX_PATTERNS:
            raise wrong(f"{member} has {len(values)} patterns, it must have 1 to {MAX_PATTERNS}", member)
        for one in values:
            if (problem := problem_of(one)) is not None:
                raise wrong(f"{member}: {problem[:200]}", member)
        patterns[member] = tuple(dict.fromkeys(values))
    note = entry.get("note", "")
    if not isinstance(note, str) or len(note) > MAX_NOTE_CHARS:
        raise wrong(f"note is no text of up to {MAX_NOTE_CHARS} characters", "note")
    return Rule(effect, patterns["source"], patterns["capability"], patterns["target"], start, note)


def _line_of(lines: list[str], start: int, member: str) -> int:
    """Where a member of the entry that begins at `start` stands; 0 when that is not found."""
    name = re.compile(rf"""\s*(?:\[+\s*)?["']?{re.escape(member)}["']?\s*[=.\]]""")
    for number, line in enumerate(lines[start:], start + 1):
        if name.match(line):
            return number
        if start and _ANY_HEADER.match(line):
            return 0
    return 0


def _not_toml(problem: str, text: str) -> RulesError:
    found = _AT.fullmatch(problem)
    if found is None:
        return RulesError(f"it is not TOML: {problem}")
    line = int(found[2]) if found[2] else max(1, len(text.splitlines()))
    return RulesError(f"it is not TOML: {found[1]}", line)
