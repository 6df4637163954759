"""From a pydantic model to the JSON Schema that the catalogue keeps: what a reader accepts."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUndefinedAnnotation
from pydantic.json_schema import GenerateJsonSchema

from bus.contracts.compare import compare_models, reader_schema, writer_schema
from bus.contracts.fields import fields_of
from bus.contracts.lint import OPEN_ENUM
from bus.contracts.version import ATTRIBUTE, Number, version_of
from bus.contracts.well_formed import DEFAULT_DIALECT, pointer, subschemas

ALIASES = "x-aliases"
_CLOSED, _NAMES = "x-model-closed", "x-model-names"


class ModelError(ValueError):
    """A model cannot be found, or has no JSON Schema; the message says which and why."""


def load_model(reference: str) -> type[BaseModel]:
    """The model that `module:Name` names; the current directory comes first on the path.

    This imports the module, so it runs its code: only generation does it, never a check. Raises ModelError.
    """
    module_name, colon, name = reference.partition(":")
    if not (colon and name.isidentifier() and all(part.isidentifier() for part in module_name.split("."))):
        raise ModelError(f"{reference!r} is not a model; say module:Name")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except (ImportError, SyntaxError, ValueError) as problem:
        raise ModelError(f"{module_name} cannot be imported: {problem}") from None
    found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, BaseModel)):
        raise ModelError(f"{module_name} has no pydantic model {name!r}")
    return found


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """The contract of a model: its validation schema in JSON Schema 2020-12, by alias.

    Raises ModelError for a model without one, and for one that writes something else than it reads: a file says both,
    and a check that believed it would call compatible what is not (SCH-2).
    """
    try:
        schema = model.model_json_schema(mode="validation", by_alias=True)
        _check_written(model)
        _check_claims(model)
    except (PydanticInvalidForJsonSchema, PydanticUndefinedAnnotation) as problem:
        raise ModelError(f"{model.__qualname__} has no JSON Schema: {problem.message}") from None
    first = _taken(schema, "title", "description", "type", "x-lint-ignore")
    last = _taken(schema, "examples", "$defs")
    return {"$schema": DEFAULT_DIALECT, **first, **schema, **last}


def _check_written(model: type[BaseModel]) -> None:
    """Names by themselves: an optional field that comes under another name is no error, and is lost."""
    written, read = fields_of(writer_schema(model)), fields_of(reader_schema(model))
    one_sided = set() if written.is_cut or read.is_cut else written.paths.keys() ^ read.paths.keys()
    for path in sorted(one_sided):
        does, not_ = ("writes", "read") if path in written.paths else ("reads", "write")
        raise ModelError(
            f"{model.__qualname__} {does} {path} and does not {not_} it, so no contract can say both: use one alias "
            "for both, a plain field in place of a computed one, and exclude nothing"
        )
    for change in compare_models(model, model, mode="backward").changes:
        if change.severity == "error" and change.kind != "cannot_tell":
            at = change.path.removeprefix("$").removeprefix(".") or "the whole"
            raise ModelError(
                f"{model.__qualname__} does not read what it writes at {at}: {change.kind.replace('_', ' ')}; make its "
                "serializer return what the field is read from, and annotate it"
            )


class _Marked(GenerateJsonSchema):
    """The schema with what the model does at each place, to hold it against what the schema claims there."""

    def literal_schema(self, schema: Any) -> dict[str, Any]:
        return {**super().literal_schema(schema), _CLOSED: True}

    def enum_schema(self, schema: Any) -> dict[str, Any]:
        return {**super().enum_schema(schema), _CLOSED: "missing" not in schema}

    def model_field_schema(self, schema: Any) -> dict[str, Any]:
        alias = schema.get("validation_alias", [])
        paths = [[alias]] if isinstance(alias, str) else [[one] if isinstance(one, str) else one for one in alias]
        return {**super().model_field_schema(schema), _NAMES: [path[0] for path in paths if len(path) == 1]}


def _check_claims(model: type[BaseModel]) -> None:
    """A file that says that readers take more than the model does makes the check call compatible what is refused."""
    for place, node in subschemas(model.model_json_schema(mode="validation", schema_generator=_Marked)):
        at = f"{model.__qualname__} at {pointer(place)}"
        if node.get(OPEN_ENUM) is True and node.get(_CLOSED):
            raise ModelError(
                f"{at} says {OPEN_ENUM} and takes no word that is not listed: make it a str with "
                '`json_schema_extra={"enum": [...]}`, or an Enum with `_missing_`'
            )
        aliases = node.get(ALIASES, ())
        names = [one for one in aliases if one not in node.get(_NAMES, ())] if isinstance(aliases, list) else []
        if names:
            raise ModelError(
                f"{at} says {ALIASES} {', '.join(map(str, names))} and does not read it: name it in "
                "`validation_alias=AliasChoices(...)` after the name of now"
            )


def _taken(schema: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: schema.pop(name) for name in names if name in schema}


def version_said(model: type[BaseModel], type: str) -> Number | None:
    """The version that the model's own `__contract__ = "type@major.minor"` says; None when it says nothing.

    Raises ModelError for another type or a text that is no version.
    """
    try:
        said = version_of(model)
    except ValueError as problem:
        raise ModelError(f"{problem}; it must be {type}@major.minor") from None
    if said is None:
        return None
    if said.type != type:
        raise ModelError(f"{model.__qualname__}.{ATTRIBUTE} is '{said}'; it must be {type}@major.minor")
    return said.major, said.minor
