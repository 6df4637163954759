"""Gates: arguments and results against a JSON Schema, and what is wrong with them in words (TOOL-3, SEC-7)."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import jsonschema_rs

MAX_PROBLEMS = 50
MAX_PROBLEM_CHARS = 300

Problem = dict[str, str]


class Gate:
    """One compiled schema. `what` begins the paths: `arguments.city`.

    Raises ValueError, with the reason in one line, for what is no JSON Schema and for a `$ref` that leaves the
    document: nothing is ever fetched. Patterns run in linear time, so that no text can hang one.
    """

    __slots__ = ("_known", "_validator", "_what", "is_valid", "schema")

    def __init__(self, schema: Mapping[str, Any], what: str) -> None:
        self.schema = schema
        self._what = what
        properties = schema.get("properties")
        self._known = dict.fromkeys(properties).keys() if isinstance(properties, Mapping) else None
        try:
            self._validator = jsonschema_rs.validator_for(
                dict(schema), offline=True, pattern_options=jsonschema_rs.RegexOptions()
            )
        except (ValueError, TypeError, jsonschema_rs.ReferencingError) as problem:
            raise ValueError(_short(str(problem).partition("\n")[0])) from None
        self.is_valid = self._validator.is_valid

    def problems(self, value: Any) -> list[Problem]:
        """Every breach, at most 50, as `{path, problem}`; unknown names say what they may have been meant for."""
        found = []
        try:
            for failed in self._validator.iter_errors(value):
                found.append(_problem(self._what, failed, self.schema))
                if len(found) == MAX_PROBLEMS:
                    break
        except ValueError as problem:
            # A value that JSON has no word for.
            found.append({"path": self._what, "problem": _short(str(problem))})
        return found

    def failures(self, value: Any) -> list[jsonschema_rs.ValidationError]:
        """The breaches as the library tells them, at most 50."""
        return [failed for failed, _ in zip(self._validator.iter_errors(value), range(MAX_PROBLEMS), strict=False)]

    def unknown_names(self, value: Any) -> list[str]:
        """Top-level names that the schema allows without knowing them, and that look like slips of known ones."""
        known = self._known
        if known is None or not isinstance(value, dict) or value.keys() <= known:
            return []
        missing = [name for name in known if name not in value]
        return [
            f"unknown argument {name!r}; did you mean {near!r}?"
            for name in value
            if name not in known and (near := nearest(name, missing))
        ]


def nearest(name: str, known: list[str], cutoff: float = 0.6) -> str | None:
    """The known name that `name` was probably meant for."""
    found = difflib.get_close_matches(name[:64], known, n=1, cutoff=cutoff)
    return found[0] if found else None


def _problem(what: str, failed: jsonschema_rs.ValidationError, schema: Mapping[str, Any]) -> Problem:
    path = ".".join([what, *(str(part) for part in failed.instance_path)])
    text = failed.message
    match failed.kind:
        case jsonschema_rs.ValidationErrorKind.AdditionalProperties(unexpected=unexpected):
            known = _property_names(failed, schema)
            text = "; ".join(_unknown(name, known) for name in unexpected[:10])
        case jsonschema_rs.ValidationErrorKind.Required(property=name):
            text = f"`{name}` is missing"
        case jsonschema_rs.ValidationErrorKind.AnyOf(context=branches):
            reasons = dict.fromkeys(one.message for branch in branches for one in branch[:1])
            text = f"fits none of what is allowed: {'; '.join(list(reasons)[:5])}"
    return {"path": path, "problem": _short(text)}


def _unknown(name: str, known: list[str]) -> str:
    near = nearest(name, known)
    return f"`{name}` is not a known name" + (f", did you mean `{near}`?" if near else "")


def _property_names(failed: jsonschema_rs.ValidationError, schema: Any) -> list[str]:
    """The names that the object has in the schema which refused the rest."""
    for part in list(failed.schema_path)[:-1]:
        try:
            schema = schema[part]
        except (KeyError, IndexError, TypeError):
            return []
    found = schema.get("properties") if isinstance(schema, Mapping) else None
    return list(found) if isinstance(found, Mapping) else []


def _short(text: str) -> str:
    return text if len(text) <= MAX_PROBLEM_CHARS else f"{text[: MAX_PROBLEM_CHARS - 1]}…"
