"""Commands for contracts on a bus: publish, impact."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from bus.cli.operate import Servers, log_to_stderr
from bus.cli.schema import SCHEMAS, Some_types, _answers, _chosen, _schema_file
from bus.cli.usage import UsageError
from bus.client import Bus
from bus.contracts.catalogue import Catalogue
from bus.contracts.check import check
from bus.contracts.compare import compare
from bus.contracts.findings import Format, Report, Severity
from bus.contracts.judge import finding_of
from bus.contracts.version import ContractVersion, parse_version
from bus.envelope.grammar import is_type_name
from bus.registry.impact import Effect, Impact, Schema, impact
from bus.registry.published import PublishedContracts
from bus.text import clean


def publish(
    types: Some_types = None,
    catalogue: Annotated[Path, typer.Option("--catalogue", metavar="DIR", help="The catalogue's folder.")] = SCHEMAS,
    servers: Servers = None,
) -> None:
    """Publish the released versions of contracts on a bus, after their check. What is published never changes.

    Example: bus schema publish draft_request
    """
    log_to_stderr("error")
    with _answers():
        found = Catalogue.read(catalogue)
        chosen = _chosen(found, types)
        findings = check(found, types=chosen)
    if any(one.severity is Severity.ERROR for one in findings):
        print(Report("schema check", tuple(chosen or found.contracts), tuple(findings)).render(Format.TEXT))
        print("error: nothing is published; see above", file=sys.stderr)
        sys.exit(1)
    released = [
        (ContractVersion(type, *version.number), version.data)
        for type, contract in found.contracts.items()
        if chosen is None or type in chosen
        for version in contract.versions
        if version.release is not None
    ]
    if not released:
        print("nothing to publish: no version is released; bus schema release TYPE")
        return
    asyncio.run(_publish(servers, released))


async def _publish(servers: str | None, released: list[tuple[ContractVersion, bytes]]) -> None:
    async with Bus.connect("schema", servers=servers) as bus:
        contracts = PublishedContracts(bus.connection)
        for version, data in released:
            is_new = await contracts.publish(version, data)
            print(f"{version}: {'published' if is_new else 'was there already'}", flush=True)


def impact_command(
    type: Annotated[str, typer.Argument(metavar="TYPE", help="The message type.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The schema file that is to come.")],
    version: Annotated[
        str | None,
        typer.Option("--version", help="Its version; default: from a name such as TYPE/3.0.json, else a new minor."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Who cannot be judged counts as broken.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, max=60, help="Seconds to wait for answers.")] = 2.0,
    servers: Servers = None,
) -> None:
    """Ask the live agents whom a new version would break. Exit code 1 when it breaks somebody.

    Example: bus schema impact draft_request schemas/draft_request/2.1.json
    """
    log_to_stderr("error")
    with _answers():
        schema = _schema_file(new)
    found = asyncio.run(_impact(servers, type, schema, _version(type, new, version), timeout))
    if as_json:
        sys.stdout.buffer.write(orjson.dumps([_wire(one) for one in found], option=orjson.OPT_APPEND_NEWLINE))
    else:
        for line in _lines(type, found):
            print(line)
    bad = {Effect.BREAKS, Effect.UNKNOWN} if strict else {Effect.BREAKS}
    sys.exit(1 if any(one.effect in bad for one in found) else 0)


async def _impact(
    servers: str | None, type: str, schema: Schema, version: ContractVersion | None, timeout_s: float
) -> list[Impact]:
    async with Bus.connect("schema", servers=servers) as bus:
        return await impact(bus.connection, type, schema, _breaks, version=version, timeout_s=timeout_s)


def _breaks(reader: Schema, new: Schema) -> list[str]:
    """What a live reader cannot take of a writer of the new schema, compared and said as `bus schema diff` does."""
    verdict = compare(reader, new, mode="forward")
    if verdict.compatible:
        return []
    findings = [finding_of(change, "") for change in verdict.changes if change.severity == "error"]
    return [f"{one.path}: {one.message}; {one.mend}" if one.path else f"{one.message}; {one.mend}" for one in findings]


def _version(type: str, new: Path, said: str | None) -> ContractVersion | None:
    is_of_catalogue = new.suffix == ".json" and new.absolute().parent.name == type and parse_version(new.stem)
    if not is_type_name(type):
        raise UsageError(clean(f"{type!r} is not a message type: snake_case, 1 to 64 characters"))
    text = said or (new.stem if is_of_catalogue else None)
    try:
        return None if text is None else ContractVersion.of_type(type, text)
    except ValueError as problem:
        raise UsageError(clean(str(problem))) from None


def _lines(type: str, found: list[Impact]) -> list[str]:
    if not found:
        return [f"nobody reads {type}: no agent here handles it"]
    lines = []
    for one in found:
        who = f"{one.replicas} replica{'s' if one.replicas != 1 else ''}" if one.replicas else "no replica"
        reads = f" of {one.reads}" if one.reads else ""
        lines.append(clean(f"{one.effect.value:<8} {one.agent} ({who}{reads})"))
        lines += [clean(f"         {reason}") for reason in one.reasons]
    return lines


def _wire(one: Impact) -> dict[str, Any]:
    return {
        "agent": one.agent,
        "effect": one.effect.value,
        "replicas": one.replicas,
        "reads": one.reads,
        "reasons": list(one.reasons),
    }
