"""Commands for contracts: check, diff, lint, generate, release, docs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from bus.cli.usage import UsageError
from bus.contracts.catalogue import Catalogue, CatalogueError
from bus.contracts.check import changed, check
from bus.contracts.compare import compare
from bus.contracts.docs import write_docs
from bus.contracts.findings import Format, Report, Severity
from bus.contracts.json_text import MAX_FILE_BYTES, NotJson, parse
from bus.contracts.judge import finding_of
from bus.contracts.lint import RULES, lint
from bus.contracts.lock import MODES, LockError
from bus.contracts.models import ModelError
from bus.contracts.release import Step, generate, release
from bus.contracts.revision import at_revision
from bus.contracts.well_formed import NotASchema, check_schema
from bus.text import clean

schema_app = typer.Typer(
    help="Contracts of payloads: what breaks whom, before it is released.", no_args_is_help=True, rich_markup_mode=None
)

In_catalogue = Annotated[
    Path, typer.Option("--catalogue", metavar="DIR", help="The folder with <type>/<major>.<minor>.json and lock.json.")
]
In_format = Annotated[Format, typer.Option("--format", help="How to print what is found.")]
Some_types = Annotated[list[str] | None, typer.Argument(metavar="TYPE...", help="Only these; default: all.")]
Since = Annotated[
    str | None, typer.Option("--since", metavar="REV", help="Only what changed since a git revision, such as main.")
]
In_mode = Annotated[str | None, typer.Option("--mode", help=f"Instead of the lock file's: {', '.join(MODES)}.")]

SCHEMAS = Path("schemas")


@contextmanager
def _answers() -> Iterator[None]:
    """Errors of the catalogue and of models as wrong use: one line, exit code 2."""
    try:
        yield
    except (CatalogueError, LockError, ModelError, NotJson, NotASchema) as problem:
        raise UsageError(clean(str(problem))) from None


@schema_app.command("check")
def check_command(
    types: Some_types = None,
    since: Since = None,
    mode: In_mode = None,
    strict: Annotated[bool, typer.Option("--strict", help="Compare schema with schema, as written.")] = False,
    format: In_format = Format.TEXT,
    catalogue: In_catalogue = SCHEMAS,
) -> None:
    """Check that released contracts are untouched and that no new version breaks anybody. Offline; writes nothing.

    Example: bus schema check --since main --format github
    """
    _known_mode(mode)
    with _answers():
        now = Catalogue.read(catalogue)
        chosen = _chosen(now, types)
        before = at_revision(catalogue, since) if since is not None else None
        findings = check(now, types=chosen, since=before, mode=mode, strict=strict, workers=os.cpu_count() or 1)
    names = now.contracts if chosen is None else [type for type in now.contracts if type in chosen]
    looked = [type for type in names if before is None or type in changed(before, now)]
    _finish(Report("schema check", tuple(looked), tuple(findings)), format)


@schema_app.command("diff")
def diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="The schema file that is in use.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The schema file that is to come.")],
    mode: Annotated[str, typer.Option("--mode", help="backward, forward or full.")] = "full",
    strict: Annotated[bool, typer.Option("--strict", help="Compare schema with schema, as written.")] = False,
    format: In_format = Format.TEXT,
) -> None:
    """Say what breaks whom between two schema files. Exit code 1 when somebody breaks.

    Example: bus schema diff schemas/note/1.0.json schemas/note/1.1.json
    """
    direction = _known_mode(mode).removesuffix("_transitive")
    with _answers():
        before, after = _schema_file(old), _schema_file(new)
        verdict = compare(before, after, mode=direction, strict=strict)
    findings = tuple(finding_of(change, new.as_posix()) for change in verdict.changes)
    _finish(Report(f"schema diff ({direction}{', strict' if strict else ''})", (new.as_posix(),), findings), format)


@schema_app.command("lint")
def lint_command(
    types: Some_types = None,
    every: Annotated[bool, typer.Option("--all", help="Older released versions too.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
    rules: Annotated[bool, typer.Option("--rules", help="List the rules instead.")] = False,
    format: In_format = Format.TEXT,
    catalogue: In_catalogue = SCHEMAS,
) -> None:
    """Check names, sizes, descriptions, examples and enums of contracts.

    A contract ignores a rule with a reason: "x-lint-ignore": {"too-deep": "mirrors the invoice"}.

    Example: bus schema lint --strict
    """
    if rules:
        for rule in RULES.values():
            print(f"{rule.severity:<8} {rule.id:<20} {rule.wants}")
        return
    with _answers():
        found = Catalogue.read(catalogue)
        chosen = _chosen(found, types)
    names = [type for type in found.contracts if chosen is None or type in chosen]
    findings = found.problems_of(chosen)
    findings += [one for type in names for one in lint(found.contracts[type], every_version=every)]
    _finish(Report("schema lint", tuple(names), tuple(findings)), format, strict=strict)


@schema_app.command("generate")
def generate_command(
    contracts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TYPE | TYPE=MODULE:MODEL]...", help="Default: all that have a model in lock.json."),
    ] = None,
    only_check: Annotated[bool, typer.Option("--check", help="Write nothing; exit code 1 when out of step.")] = False,
    catalogue: In_catalogue = SCHEMAS,
) -> None:
    """Write the working version of contracts from their pydantic models. Released versions are never touched.

    Example: bus schema generate note=shop.messages:Note
    """
    with _answers():
        if contracts and not only_check:
            catalogue.mkdir(parents=True, exist_ok=True)
        found = Catalogue.read(catalogue)
        wanted = contracts or [type for type, entry in found.lock.contracts.items() if entry.model]
        found.refuse_broken(())
        if not wanted:
            raise UsageError("no contract has a model yet; say bus schema generate TYPE=module:Model")
        differs = False
        for text in wanted:
            type, _, reference = text.partition("=")
            made = generate(found, catalogue, type, reference or None, write=not only_check)
            differs |= made.step is Step.WRITTEN
            said = {Step.SAME: "in step", Step.WRITTEN: "out of step" if only_check else "written"}[made.step]
            print(clean(f"{made.file}: {said}"))
            found = Catalogue.read(catalogue)
    if only_check and differs:
        print("error: contracts and models differ; run bus schema generate", file=sys.stderr)
        sys.exit(1)


@schema_app.command("release")
def release_command(
    type: Annotated[str, typer.Argument(metavar="TYPE", help="The contract to freeze.")],
    owner: Annotated[
        str | None, typer.Option("--owner", help="The team that answers for it; kept from then on.")
    ] = None,
    note: Annotated[str, typer.Option("--note", help="What changed, in a few words.")] = "",
    sender: Annotated[
        list[str] | None, typer.Option("--sender", help="An agent that sends it; may be repeated.")
    ] = None,
    receiver: Annotated[list[str] | None, typer.Option("--receiver", help="An agent that receives it.")] = None,
    accept_breaking: Annotated[
        str, typer.Option("--accept-breaking", metavar="WHY", help="Release it although it breaks somebody.")
    ] = "",
    format: In_format = Format.TEXT,
    catalogue: In_catalogue = SCHEMAS,
) -> None:
    """Freeze the working version of a contract, after its check and lint have passed.

    Example: bus schema release note --owner shop --note "add the author"
    """
    with _answers():
        found = Catalogue.read(catalogue)
        released, findings = release(
            found, catalogue, type, day=datetime.now(UTC).date(), owner=owner, note=note,
            accepted=accept_breaking, senders=sender or (), receivers=receiver or (),
        )  # fmt: skip
    report = Report("schema release", (type,), tuple(findings))
    if not released or findings:
        print(report.render(format))
    if not released:
        print(f"error: {clean(type)} is not released; see above", file=sys.stderr)
        sys.exit(1)
    print(f"released {', '.join(released)}; commit it with {catalogue.as_posix()}/lock.json")


@schema_app.command("docs")
def docs(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where to write.")] = Path("build/contracts"),
    title: Annotated[str, typer.Option("--title", help="The title of the documents.")] = "Contracts",
    catalogue: In_catalogue = SCHEMAS,
) -> None:
    """Write asyncapi.json (AsyncAPI 3), contracts.md and contracts.html: types, who sends, who receives, history.

    Example: bus schema docs --out build/contracts
    """
    with _answers():
        found = Catalogue.read(catalogue)
        bad = next((one for one in found.problems if one.severity is Severity.ERROR), None)
        if bad is not None:
            raise CatalogueError(f"{bad.file}: {bad.message}; bus schema check says more")
        for path in write_docs(found, out, title=title):
            print(path.as_posix())


def _chosen(catalogue: Catalogue, types: list[str] | None) -> set[str] | None:
    """The types that are meant, None for all. Raises CatalogueError for one that is nowhere."""
    if not types:
        return None
    known = catalogue.contracts.keys() | catalogue.lock.contracts.keys()
    broken = {catalogue.folder_of(one) for one in catalogue.problems}
    for type in types:
        if type not in known | broken:
            catalogue.contract(type)
    return set(types)


def _known_mode(mode: str | None) -> str:
    if mode is not None and mode not in MODES:
        raise UsageError(f"--mode {mode!r} is none of {', '.join(MODES)}")
    return mode or ""


def _schema_file(path: Path) -> Any:
    """A schema from a file. Raises CatalogueError that names the file."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise CatalogueError(f"{path} has more than {MAX_FILE_BYTES} bytes")
        schema = parse(path.read_bytes())
        check_schema(schema)
    except OSError as problem:
        raise CatalogueError(f"{path} cannot be read: {problem.strerror}") from None
    except (NotJson, NotASchema) as problem:
        raise CatalogueError(f"{path}: {problem}") from None
    return schema


def _finish(report: Report, format: Format, *, strict: bool = False) -> None:
    print(report.render(format, strict=strict))
    sys.exit(1 if report.failed(strict=strict) else 0)
