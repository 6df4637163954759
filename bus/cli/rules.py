"""Commands about rules: check a file, explain a decision."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from bus.broker.survey import agents_with_consumer
from bus.calls.index import Registered
from bus.cli.inspect import As_json
from bus.cli.operate import Servers, log_to_stderr
from bus.cli.usage import UsageError
from bus.client import Bus
from bus.config import Settings
from bus.errors import BusError
from bus.registry.readers import live_replicas
from bus.text import clean
from bus.trust.rule_findings import Known, strangers, unreachable
from bus.trust.rules import Decision, RuleSet, agent_problem, capability_problem
from bus.trust.rules_file import RulesError, read_rules

LOOK_S = 2.0
BROKEN = 1

rules_app = typer.Typer(
    help="Who may call what: check a rules file, explain a decision.", no_args_is_help=True, rich_markup_mode=None
)

Offline = Annotated[bool, typer.Option("--offline", help="Do not ask the registry.")]


@dataclass(frozen=True, slots=True)
class _Bus:
    """What a running bus knows; nothing when none runs."""

    agents: frozenset[str] = frozenset()
    registered: tuple[Registered, ...] = ()
    is_known: bool = False

    def offers(self, capability: str) -> dict[str, bool]:
        """Who offers a capability, and whether it is sensitive there."""
        return {
            one.agent: card.sensitive
            for one in self.registered
            for announcement in one.announcements
            for card in announcement.cards
            if card.name == capability
        }

    @property
    def capabilities(self) -> set[str]:
        """All names that somebody offers."""
        return {card.name for one in self.registered for known in one.announcements for card in known.cards}


@rules_app.command("check")
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The rules.")],
    offline: Offline = False,
    as_json: As_json = False,
    servers: Servers = None,
) -> None:
    """Check a rules file: whether it can be used, which rules never have an effect, which names nobody knows.

    Exit code 1 when it cannot be used; warnings alone are 0. Names are compared with the registry of a bus that runs.

    Example: bus rules check rules.toml
    """
    try:
        rules = _read(file)
    except RulesError as problem:
        if as_json:
            _print({"ok": False, "line": problem.line, "problem": str(problem), "warnings": []})
        else:
            print(clean(f"{file}: {problem}"), file=sys.stderr)
        sys.exit(BROKEN)
    found = list(unreachable(rules.rules))
    known = _known(servers, offline)
    if known.is_known:
        found += strangers(rules.rules, Known(known.agents, known.capabilities))
    if as_json:
        _print({"ok": True, "rules": len(rules.rules), "compared": known.is_known, "warnings": found})
        return
    for one in sorted(found, key=lambda one: one.line):
        print(clean(f"warning: {one.rule}: {one.problem}"))
    names = "" if known.is_known else "; no bus runs, so names were not compared with a registry"
    print(f"{len(rules.rules)} rules can be used, {len(found)} warnings{names}")


@rules_app.command("explain")
def explain(
    source: Annotated[str, typer.Argument(help="Who calls.")],
    capability: Annotated[str, typer.Argument(help="What.")],
    target: Annotated[str | None, typer.Argument(help="Whom; default: every agent that offers it now.")] = None,
    rules_file: Annotated[
        Path | None, typer.Option("--rules", metavar="FILE", help="The rules; default: BUS_RULES_FILE.")
    ] = None,
    sensitive: Annotated[
        bool | None, typer.Option("--sensitive/--not-sensitive", help="Default: as its card says.")
    ] = None,
    behalf: Annotated[list[str] | None, typer.Option("--for", help="On behalf of; may be repeated.")] = None,
    offline: Offline = False,
    as_json: As_json = False,
    servers: Servers = None,
) -> None:
    """Say whether a call may be made, which rule decides, and why. Exit code 1 when it may not.

    Example: bus rules explain planner calculator.add alice --rules rules.toml
    """
    chain = [source, *(behalf or [])]
    problems = [agent_problem(one) for one in (*chain, target or source)] + [capability_problem(capability)]
    if problem := next(filter(None, problems), None):
        raise UsageError(problem)
    if any("*" in name for name in (*chain, capability, target or "")):
        raise UsageError("explain takes names, not patterns")
    rules = _rules(rules_file)
    known = _known(servers, offline)
    offers = known.offers(capability)
    targets = [target] if target is not None else sorted(offers)
    if not targets:
        raise UsageError(f"nobody offers {capability} now; name the agent, or start one")
    answers = []
    for one in targets:
        is_sensitive = offers.get(one, False) if sensitive is None else sensitive
        for name in dict.fromkeys(chain):
            decision = rules.decide(name, capability, one, sensitive=is_sensitive)
            answers.append(_answer(name, capability, one, is_sensitive, decision))
    may = [all(each["allowed"] for each in answers if each["target"] == one) for one in targets]
    if as_json:
        _print({"allowed": all(may), "decisions": answers})
    else:
        for each in answers:
            verdict = "yes" if each["allowed"] else "no "
            print(clean(f"{verdict}  {each['source']} > {capability} of {each['target']}: {each['why']}"))
    sys.exit(0 if all(may) else 1)


def _answer(source: str, capability: str, target: str, sensitive: bool, decision: Decision) -> dict[str, Any]:
    rule = decision.rule
    return {
        "source": source,
        "capability": capability,
        "target": target,
        "sensitive": sensitive,
        "allowed": decision.is_allowed,
        "why": decision.why + (f" ({rule.note})" if rule is not None and rule.note else ""),
        "line": rule.line if rule is not None else None,
    }


def _rules(file: Path | None) -> RuleSet:
    """The rules of an option, or else of the setting. Raises UsageError."""
    if file is None:
        named = Settings.load().rules_file
        if not named:
            raise UsageError("there are no rules: everything is allowed; give --rules FILE, or set BUS_RULES_FILE")
        file = Path(named).expanduser()
    try:
        return _read(file)
    except RulesError as problem:
        raise UsageError(f"{file}: {problem}") from None


def _read(file: Path) -> RuleSet:
    try:
        return read_rules(file.read_bytes())
    except OSError as problem:
        raise UsageError(f"cannot read {file}: {problem.strerror or problem}") from None


def _known(servers: str | None, offline: bool) -> _Bus:
    if offline:
        return _Bus()
    log_to_stderr("error")
    return asyncio.run(_bus(servers))


async def _bus(servers: str | None) -> _Bus:
    """What the bus knows, if one runs; none is started for it."""
    with contextlib.suppress(BusError):
        settings = Settings.load(servers=servers, connect_timeout_s=LOOK_S, rules_file="")
        if not settings.servers and not (settings.store_dir / "broker.json").exists():
            return _Bus()
        async with Bus.connect("rules", settings=settings) as bus:
            registered = tuple(await bus.capabilities.agents())
            agents = {one.agent for one in registered} | await agents_with_consumer(bus.connection)
            agents |= (await live_replicas(bus.connection)).keys()
            return _Bus(frozenset(agents), registered, True)
    return _Bus()


def _print(value: Any) -> None:
    print(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
