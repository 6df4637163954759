"""Cards: what a capability is, as others read it (REG-1, REG-9)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import orjson

from bus.calls.gate import Gate
from bus.errors import RegistryError, error

MAX_CARD_BYTES = 64 * 1024
MAX_NAME_CHARS = 128
MAX_TIMEOUT_S = 86400.0
CALL_MODE, TASK_MODE = "call", "task"

_NAME = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)+")
_NUMBER = r"(0|[1-9][0-9]{0,8})"
_SEMVER = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?")
_WANTED = re.compile(rf"{_NUMBER}(?:\.{_NUMBER})?(?:\.{_NUMBER})?")
_FIELDS = (
    "name", "description", "input_schema", "output_schema", "example", "timeout_s", "idempotent", "sensitive",
    "streaming", "version", "accepts", "mode",
)  # fmt: skip


def is_capability_name(value: object) -> bool:
    """Whether the value is a capability's name: words of `a-z 0-9 _` joined by dots, at least two."""
    return isinstance(value, str) and len(value) <= MAX_NAME_CHARS and _NAME.fullmatch(value) is not None


@dataclass(frozen=True, slots=True)
class Card:
    """One capability of one agent. `digest` is the SHA-256 of all the rest; equal cards have equal digests.

    `accepts` are older versions whose calls it still takes; `example` is None or arguments that it takes. With
    `streaming`, `output_schema` is that of one chunk. Calls of a card whose `mode` is `task` are answered pending. Make
    one with `Card.checked`.
    """

    name: str
    description: str
    input_schema: Mapping[str, Any] = field(hash=False)
    output_schema: Mapping[str, Any] | None = field(default=None, hash=False)
    example: Any = field(default=None, hash=False)
    timeout_s: float = 10.0
    idempotent: bool = False
    sensitive: bool = False
    streaming: bool = False
    version: str = "1.0.0"
    accepts: tuple[str, ...] = ()
    mode: str = CALL_MODE
    digest: str = field(init=False, default="")

    def __post_init__(self) -> None:
        content = orjson.dumps(self._fields(), option=orjson.OPT_SORT_KEYS)
        object.__setattr__(self, "digest", hashlib.sha256(content).hexdigest())

    @classmethod
    def checked(cls, fields: Mapping[str, Any]) -> Self:
        """A card from its fields. Raises RegistryError `registry.invalid_card` with every reason at once.

        Unknown fields are ignored. `details.problems` lists `{path, problem}`.
        """
        card = cls.read(fields)
        problems = [*card._schema_problems()]
        if problems:
            raise _invalid(card.name, problems)
        return card

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        """As `checked`, but takes the schemas as they are: for cards that others have registered."""
        known = {name: fields[name] for name in _FIELDS if name in fields}
        problems = _field_problems(known)
        if not problems:
            known["accepts"] = tuple(known.get("accepts", ()))
            try:
                size = len(orjson.dumps(known))
                if size > MAX_CARD_BYTES:
                    problems.append(_problem("card", f"has {size} bytes, the limit is {MAX_CARD_BYTES}"))
                else:
                    return cls(**known)
            except (TypeError, ValueError) as found:
                problems.append(_problem("card", f"is not JSON: {found}"))
        else:
            problems += _schemas_alone(known)
        raise _invalid(known.get("name"), problems)

    def serves(self, wanted: str | None) -> bool:
        """Whether it takes calls made for the version `wanted`: `1`, `1.2` or `1.2.3`, and compatible later ones."""
        return wanted is None or any(_is_compatible(one, wanted) for one in (self.version, *self.accepts))

    def to_wire(self) -> dict[str, Any]:
        """The JSON object that stands for it in the registry."""
        return {**self._fields(), "digest": self.digest}

    def _fields(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in _FIELDS}
        if self.mode == CALL_MODE:
            del fields["mode"]  # As it was before there were modes, so that digests stay.
        return {**fields, "accepts": list(self.accepts)}

    def _schema_problems(self) -> list[dict[str, str]]:
        return _schemas_alone({name: getattr(self, name) for name in _FIELDS})


def is_wanted(value: object) -> bool:
    """Whether the value can be asked for as a version: `1`, `1.2` or `1.2.3`."""
    return isinstance(value, str) and _WANTED.fullmatch(value) is not None


def _is_compatible(version: str, wanted: str) -> bool:
    here, there = _SEMVER.fullmatch(version), _WANTED.fullmatch(wanted)
    if here is None or there is None:
        return False
    ours = tuple(int(part) for part in here.groups()[:3])
    theirs = tuple(int(part or 0) for part in there.groups())
    # Below 1.0.0 a minor version may break its callers.
    same = ours[:1] == theirs[:1] and (ours[0] > 0 or there[2] is None or ours[1] == theirs[1])
    return same and ours >= theirs


def _problem(path: str, problem: str) -> dict[str, str]:
    return {"path": path, "problem": problem}


def _field_problems(fields: Mapping[str, Any]) -> list[dict[str, str]]:
    get, found = fields.get, []

    def demand(is_met: bool, path: str, rule: str) -> None:
        if not is_met:
            found.append(_problem(path, rule))

    demand(is_capability_name(get("name")), "name", "must be words of a-z 0-9 _ joined by dots, such as calculator.add")
    description = get("description")
    demand(
        isinstance(description, str) and len(description.strip()) > 0 and len(description) <= 4000,
        "description",
        "must say in 1 to 4000 characters what it does; a docstring counts",
    )
    demand(isinstance(get("input_schema"), Mapping), "input_schema", "must be a JSON Schema object")
    demand(isinstance(get("output_schema"), Mapping | None), "output_schema", "must be a JSON Schema object, or absent")
    timeout_s = get("timeout_s", 10.0)
    demand(
        type(timeout_s) in (int, float) and 0 < timeout_s <= MAX_TIMEOUT_S,
        "timeout_s",
        f"must be a number above 0, up to {MAX_TIMEOUT_S:.0f}",
    )
    for name in ("idempotent", "sensitive", "streaming"):
        demand(isinstance(get(name, False), bool), name, "must be true or false")
    demand(get("mode", CALL_MODE) in (CALL_MODE, TASK_MODE), "mode", "must be call or task")
    version, accepts = get("version", "1.0.0"), get("accepts", ())
    demand(isinstance(version, str) and _SEMVER.fullmatch(version) is not None, "version", "must be SemVer: 1.4.0")
    demand(
        isinstance(accepts, list | tuple)
        and len(accepts) <= 100
        and all(isinstance(one, str) and _SEMVER.fullmatch(one) for one in accepts),
        "accepts",
        "must be a list of SemVer versions",
    )
    return found


def _schemas_alone(fields: Mapping[str, Any]) -> list[dict[str, str]]:
    """What is wrong with the schemas, and with the example by its schema."""
    found: list[dict[str, str]] = []
    gates: dict[str, Gate] = {}
    for name in ("input_schema", "output_schema"):
        schema = fields.get(name)
        if isinstance(schema, Mapping):
            try:
                gates[name] = Gate(dict(schema), "example" if name == "input_schema" else "result")
            except ValueError as problem:
                found.append(_problem(name, f"is not a JSON Schema: {problem}"))
    schema = fields.get("input_schema")
    if isinstance(schema, Mapping) and schema.get("type", "object") != "object":
        found.append(_problem("input_schema", "must describe an object, because arguments have names"))
    if fields.get("example") is not None and "input_schema" in gates:
        found += gates["input_schema"].problems(fields["example"])
    return found


def _invalid(name: object, problems: list[dict[str, str]]) -> RegistryError:
    told = "; ".join(f"{one['path']} {one['problem']}" for one in problems[:10])
    refused = error("registry.invalid_card", f"the card of {str(name)[:128]!r} is refused: {told}", problems=problems)
    assert isinstance(refused, RegistryError)
    return refused
