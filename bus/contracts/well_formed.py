"""Whether a file is a JSON Schema that this library can compare: its dialect, its keywords, its references."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote

import jsonschema_rs

DIALECTS: Final = {
    "https://json-schema.org/draft/2020-12/schema": jsonschema_rs.Draft202012Validator,
    "http://json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
}
DEFAULT_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_META: Final = {
    "https://json-schema.org/draft/2020-12/schema": "2020-12",
    "http://json-schema.org/draft-07/schema": "draft-07",
}
# Keywords whose value is data, not a schema: a `$ref` in an example is no reference.
_DATA: Final = frozenset({"const", "enum", "default", "examples", "x-lint-ignore"})
_NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
Place = tuple["Place", str] | None
"""Where a schema stands: the place around it and the name there; None for the top."""

_DYNAMIC: Final = ("$dynamicRef", "$recursiveRef")


class NotASchema(ValueError):
    """The value is no schema that can be used. `rule` is a finding's id, `path` a JSON pointer, `mend` what to do."""

    def __init__(self, rule: str, message: str, mend: str, path: str = "") -> None:
        super().__init__(message)
        self.rule, self.mend, self.path = rule, mend, path


def dialect(schema: Any) -> str:
    """The dialect of a schema; 2020-12 when it says none. Raises NotASchema for one that is not known here."""
    said = schema.get("$schema", DEFAULT_DIALECT) if isinstance(schema, dict) else DEFAULT_DIALECT
    plain = said.rstrip("#").replace("https://json-schema.org/draft-07", "http://json-schema.org/draft-07")
    if plain not in DIALECTS:
        mend = f"write it in {' or '.join(_META.values())}: {DEFAULT_DIALECT}"
        raise NotASchema("unknown-draft", f"the dialect {said!r} is not known", mend, "/$schema")
    return plain


def check_schema(schema: Any) -> None:
    """Raises NotASchema unless this is a schema (an object, true or false) in a known dialect, with keywords of the
    right shape, patterns that compile, and references that lead to a place in the same file (SEC-7).
    """
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise NotASchema("not-a-schema", "a schema is an object, true or false", "write an object")
    if not isinstance(schema.get("$schema", ""), str):
        raise NotASchema("unknown-draft", "$schema must be a string", f"write {DEFAULT_DIALECT}", "/$schema")
    validator = DIALECTS[dialect(schema)]
    try:
        jsonschema_rs.meta.validate({**schema, "$schema": dialect(schema)})
    except jsonschema_rs.ValidationError as problem:
        path = "".join(f"/{part}" for part in problem.instance_path)
        raise NotASchema("not-a-schema", _line(problem.message), "mend the keyword", path) from None
    checked: set[str] = set()
    for place, node in subschemas(schema):
        _check_references(schema, node, place, checked)
    try:
        validator({**schema, "$schema": dialect(schema)}, offline=True)
    except jsonschema_rs.ValidationError as problem:
        path = "".join(f"/{part}" for part in problem.instance_path)
        raise NotASchema("not-a-schema", _line(problem.message), "mend it", path) from None
    except (jsonschema_rs.ReferencingError, ValueError) as problem:
        raise NotASchema("not-a-schema", _line(str(problem)), "mend it") from None


def validator_of(schema: Any) -> jsonschema_rs.Validator:
    """A validator of a well-formed schema that also checks formats."""
    if isinstance(schema, bool):
        return jsonschema_rs.Draft202012Validator(schema)
    known = dialect(schema)
    return DIALECTS[known]({**schema, "$schema": known}, validate_formats=True, offline=True)


def subschemas(schema: Any) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Every object of a schema that is a schema itself, and its place; data (enum, examples) is left out.

    `pointer` makes text of a place: most callers need it for the few that are wrong.
    """
    waiting: list[tuple[Place, Any, bool]] = [(None, schema, True)]
    while waiting:
        place, node, is_schema = waiting.pop()
        if isinstance(node, dict):
            if is_schema:
                yield place, node
            for name, value in node.items():
                if isinstance(value, dict | list) and not (is_schema and name in _DATA):
                    waiting.append(((place, name), value, not (is_schema and name in _NAMED)))
        else:
            waiting += [
                ((place, str(index)), value, True) for index, value in enumerate(node) if isinstance(value, dict | list)
            ]


def pointer(place: Place, *more: str) -> str:
    """A place as a JSON pointer: `/$defs/Quote/properties/line`."""
    parts = list(reversed(more))
    while place is not None:
        place, name = place
        parts.append(name)
    return "".join(f"/{part.replace('~', '~0').replace('/', '~1')}" for part in reversed(parts))


def resolve(root: Any, reference: str) -> Any:
    """What a local reference (`#`, `#/$defs/Quote`) leads to. Raises KeyError when it leads nowhere."""
    node = root
    if reference in ("#", ""):
        return node
    if not reference.startswith("#/"):
        raise KeyError(reference)
    for part in reference[2:].split("/"):
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and name in node:
            node = node[name]
        elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
            node = node[int(name)]
        else:
            raise KeyError(reference)
    return node


def _check_references(root: Any, node: dict[str, Any], place: Place, checked: set[str]) -> None:
    for keyword in _DYNAMIC:
        if keyword in node:
            mend = "use $ref to a place in $defs"
            raise NotASchema("bad-reference", f"{keyword} cannot be compared", mend, pointer(place, keyword))
    reference = node.get("$ref")
    if not isinstance(reference, str) or reference in checked:
        return
    checked.add(reference)
    if not reference.startswith("#"):
        mend = "copy it into $defs; a contract must be whole without the network or another file"
        message = f"$ref {reference!r} leads out of the file"
        raise NotASchema("remote-reference", message, mend, pointer(place, "$ref"))
    try:
        target = resolve(root, reference)
    except KeyError:
        target = None
    if not isinstance(target, dict | bool):
        mend = "name a place that exists, such as #/$defs/Name"
        raise NotASchema("bad-reference", f"$ref {reference!r} leads nowhere", mend, pointer(place, "$ref"))


def _line(text: str) -> str:
    short = " ".join(text.split())
    return short if len(short) <= 300 else f"{short[:299]}…"
