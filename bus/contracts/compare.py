"""Does a new version of a contract break somebody? (SCH-2)

Two questions, each proven or answered with the reasons: can new readers read what old writers send (backward), can
old readers read what new writers send (forward). "Cannot tell" counts as breaking and says so. Nothing is fetched,
nothing is written; the work is bounded, whatever the schemas are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from .compatibility.clause import Mode
from .compatibility.differences import differences
from .compatibility.document import read
from .compatibility.explain import Change, Finding, explain, gave_up
from .compatibility.goals import Run
from .compatibility.node import Document
from .compatibility.prover import Proof
from .compatibility.values import CannotTell
from .lock import MODES

Schema = Mapping[str, Any] | bool | Document
Direction = Literal["backward", "forward"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer for one pair of versions.

    `compatible` is false when an old or a new reader may refuse something, as far as `mode` asks. `changes` are the
    errors first, then warnings, then what changed without harm. `subject` and `file` are for reports, see `named`.
    """

    compatible: bool
    changes: tuple[Change, ...]
    mode: str
    subject: str = ""
    file: str = ""

    def named(self, subject: str, *, file: str = "") -> Verdict:
        """The same verdict for a report: what was compared (`draft_request 2.0 -> 2.1`), and its file."""
        return replace(self, subject=subject, file=file)

    def to_json(self) -> dict[str, Any]:
        """The verdict as a JSON object."""
        named = {name: value for name, value in (("subject", self.subject), ("file", self.file)) if value}
        changes = [change.to_json() for change in self.changes]
        return {**named, "compatible": self.compatible, "mode": self.mode, "changes": changes}


class _Sides(NamedTuple):
    """The two versions as their writers and their readers see them."""

    old_writer: Document
    old_reader: Document
    new_writer: Document
    new_reader: Document


def prepare(schema: Schema) -> Document:
    """Read a schema once, to compare it many times. Raises CannotTell when it cannot be compared at all."""
    return schema if isinstance(schema, Document) else read(schema)


def compare(
    old: Schema, new: Schema, *, mode: str = "full", strict: bool = False, renamed: Mapping[str, str] | None = None
) -> Verdict:
    """Compare two versions, each the JSON Schema of what a reader takes, in draft-07 or 2020-12.

    Writers follow from the files: an object with `properties` is sent closed unless `additionalProperties` is written
    (and not false), and properties with a default are always sent. `strict` compares schema with schema instead, as
    Confluent's checker does. `renamed` maps old property names to new ones that an upcaster covers; a property may
    also say `"x-aliases": ["old_name"]`. `"x-open-enum": true` beside an enum: readers take other values too.

    Raises ValueError for a mode that does not exist. Everything else is a verdict: a schema that cannot be read, or
    is too complex, breaks both sides with the kind `cannot_tell`.
    """
    _check_mode(mode)
    try:
        before, after = _document(old, "old"), _document(new, "new")
    except CannotTell as refused:
        return Verdict(False, (gave_up(refused),), mode)
    return _judge(_Sides(before, before, after, after), mode=mode, strict=strict, renamed=renamed or {})


def compare_many(
    versions: Mapping[str, Schema] | Sequence[Schema],
    new: Schema,
    *,
    mode: str = "full_transitive",
    strict: bool = False,
    renamed: Mapping[str, str] | None = None,
) -> tuple[Verdict, ...]:
    """Compare a version with earlier ones, oldest first: with each in a transitive mode, else with the last.

    The subject of a verdict is the name of the earlier version (or its position from 0).
    """
    _check_mode(mode)
    named = list(versions.items() if isinstance(versions, Mapping) else ((str(n), v) for n, v in enumerate(versions)))
    chosen = named if mode.endswith("_transitive") else named[-1:]
    return tuple(compare(old, new, mode=mode, strict=strict, renamed=renamed).named(name) for name, old in chosen)


def compare_models(
    old: type[BaseModel],
    new: type[BaseModel],
    *,
    mode: str = "full",
    renamed: Mapping[str, str] | None = None,
) -> Verdict:
    """Compare two pydantic models: what one serialises (defaults always written) with what the other validates."""
    _check_mode(mode)
    try:
        before, after = (
            (read(writer_schema(old)), read(reader_schema(old))),
            (read(writer_schema(new)), read(reader_schema(new))),
        )
        sides = _Sides(*before, *after)
    except CannotTell as refused:
        return Verdict(False, (gave_up(refused),), mode)
    return _judge(sides, mode=mode, strict=False, renamed=renamed or {})


class _Written(GenerateJsonSchema):
    """What is serialised: a field with a default is always there."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        if self.mode == "serialization" and not field.get("serialization_exclude"):
            return not field.get("serialization_exclude_if")
        return super().field_is_required(field, total)


def writer_schema(model: type[BaseModel]) -> dict[str, Any]:
    """What instances of the model are serialised to; every field is required."""
    return model.model_json_schema(mode="serialization", schema_generator=_Written)


def reader_schema(model: type[BaseModel]) -> dict[str, Any]:
    """What the model takes."""
    return model.model_json_schema(mode="validation")


def _check_mode(mode: str) -> None:
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} does not exist; use one of {', '.join(MODES)}")


def _document(schema: Schema, side: str) -> Document:
    try:
        return prepare(schema)
    except CannotTell as refused:
        raise CannotTell(f"the {side} schema: {refused.why}", refused.path) from None


def _judge(sides: _Sides, *, mode: str, strict: bool, renamed: Mapping[str, str]) -> Verdict:
    directions: list[Direction] = []
    if not mode.startswith("forward"):
        directions.append("backward")
    if not mode.startswith("backward"):
        directions.append("forward")
    findings: list[Finding] = []
    for direction in directions:
        findings += _ask(sides, direction, strict=strict, renamed=renamed)
    run = _run(sides.old_reader, sides.new_reader, strict=strict, renamed=renamed)
    found = []
    try:
        proof = Proof(run)
        found = differences(run, sides.old_reader.root, sides.new_reader.root, proof.same)
    except CannotTell as refused:
        findings += [Finding.of_limit(refused, direction) for direction in directions]
    changes = explain(findings, found, directions)
    return Verdict(not any(change.severity == "error" for change in changes), changes, mode)


def _run(one: Document, other: Document, **options: Any) -> Run:
    shared, dialect = one.shares_definitions(other), one.dialect == other.dialect
    return Run(same_dialect=dialect, shared_definitions=shared, **options)


def _ask(sides: _Sides, direction: Direction, *, strict: bool, renamed: Mapping[str, str]) -> list[Finding]:
    backward = direction == "backward"
    writer, reader = (sides.old_writer, sides.new_reader) if backward else (sides.new_writer, sides.old_reader)
    run = _run(writer, reader, strict=strict, renamed=renamed, reader_is_new=backward)
    mode = Mode.WRITER if not strict else Mode.RAW
    try:
        whys = Proof(run).includes(((writer.root, mode),), (reader.root, Mode.READER))
    except CannotTell as refused:
        return [Finding.of_limit(refused, direction)]
    except RecursionError:  # the caller's own stack was deep already
        return [Finding.of_limit(CannotTell("the schemas are nested too deeply to compare"), direction)]
    return [Finding(why, direction) for why in whys]
