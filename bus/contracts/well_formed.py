"""Whether a file is a JSON Schema that this library can compare: its dialect, its keywords, its references."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

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
    for path, node in subschemas(schema):
        _check_references(schema, node, path)
    try:
        validator({**schema, "$schema": dialect(schema)}, retriever=_refuse)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as problem:
        raise NotASchema("not-a-schema", _line(str(problem)), "mend it") from None


def validator_of(schema: Any) -> jsonschema_rs.Validator:
    """A validator of a well-formed schema that also checks formats."""
    if isinstance(schema, bool):
        return jsonschema_rs.Draft202012Validator(schema)
    known = dialect(schema)
    return DIALECTS[known]({**schema, "$schema": known}, validate_formats=True, retriever=_refuse)


def subschemas(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of a schema that is a schema itself, with its JSON pointer; data (enum, examples) is left out."""
    waiting: list[tuple[str, Any, bool]] = [("", schema, True)]
    while waiting:
        path, node, is_schema = waiting.pop()
        if isinstance(node, dict):
            if is_schema:
                yield path, node
            for name, value in node.items():
                if is_schema and name in _DATA:
                    continue
                at = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
                waiting.append((at, value, not (is_schema and name in _NAMED)))
        elif isinstance(node, list):
            waiting += [(f"{path}/{index}", value, True) for index, value in enumerate(node)]


def resolve(root: Any, reference: str) -> Any:
    """What a local reference (`#`, `#/$defs/Quote`) leads to. Raises KeyError when it leads nowhere."""
    node = root
    if reference in ("#", ""):
        return node
    if not reference.startswith("#/"):
        raise KeyError(reference)
    for part in reference[2:].split("/"):
        name = re.sub(r"%([0-9A-Fa-f]{2})", lambda found: chr(int(found[1], 16)), part)
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and name in node:
            node = node[name]
        elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
            node = node[int(name)]
        else:
            raise KeyError(reference)
    return node


def _check_references(root: Any, node: dict[str, Any], path: str) -> None:
    for keyword in _DYNAMIC:
        if keyword in node:
            mend = "use $ref to a place in $defs"
            raise NotASchema("bad-reference", f"{keyword} cannot be compared", mend, f"{path}/{keyword}")
    reference = node.get("$ref")
    if not isinstance(reference, str):
        return
    if not reference.startswith("#"):
        mend = "copy it into $defs; a contract must be whole without the network or another file"
        raise NotASchema("remote-reference", f"$ref {reference!r} leads out of the file", mend, f"{path}/$ref")
    try:
        target = resolve(root, reference)
    except (KeyError, ValueError):
        target = None
    if not isinstance(target, dict | bool):
        mend = "name a place that exists, such as #/$defs/Name"
        raise NotASchema("bad-reference", f"$ref {reference!r} leads nowhere", mend, f"{path}/$ref")


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is not fetched")


def _line(text: str) -> str:
    short = " ".join(text.split())
    return short if len(short) <= 300 else f"{short[:299]}…"
