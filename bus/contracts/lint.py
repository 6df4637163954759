"""The linter of contracts: names, sizes, descriptions, examples, enums, renames (TOOL-7).

A contract switches a rule off with a reason, which stays in its file for its readers: at the top for the whole file,
or at a field for that field: `"x-lint-ignore": {"too-deep": "mirrors the shape of the invoice"}`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bus.contracts.catalogue import Contract, Version
from bus.contracts.fields import Field, Fields, fields_of
from bus.contracts.findings import Finding, Severity
from bus.contracts.version import show_version
from bus.contracts.well_formed import Place, pointer, subschemas, validator_of

IGNORE: Final = "x-lint-ignore"
OPEN_ENUM: Final = "x-open-enum"
MAX_PARAMETERS: Final = 8
MAX_LEVEL: Final = 2
MAX_EXAMPLES: Final = 50
ALIKE: Final = 0.75

_SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its id, how much a breach weighs, and what it wants in one line."""

    id: str
    severity: Severity
    wants: str


_RULES: Final = (
    Rule("snake-case", Severity.ERROR, "field names are snake_case"),
    Rule("boolean-prefix", Severity.WARNING, "booleans begin with is_ or has_, and nothing else does"),
    Rule("time-suffix", Severity.ERROR, "a name that ends in _at is a string with the format date-time"),
    Rule("time-name", Severity.WARNING, "a field with the format date-time ends in _at"),
    Rule("amount-currency", Severity.ERROR, "an _amount stands beside its _currency"),
    Rule("too-many-fields", Severity.WARNING, f"an object has at most {MAX_PARAMETERS} fields"),
    Rule("too-deep", Severity.WARNING, f"fields lie at most {MAX_LEVEL} levels deep"),
    Rule("too-large", Severity.ERROR, "a contract has at most 2000 fields"),
    Rule("description-missing", Severity.WARNING, "the contract and every field say in words what they mean"),
    Rule("example-missing", Severity.WARNING, "the contract has an example under `examples`"),
    Rule("example-invalid", Severity.ERROR, "every example and default is valid against its own schema"),
    Rule("enum-unmarked", Severity.WARNING, f"an enum says whether it may grow: {OPEN_ENUM}: true or false"),
    Rule("rename-suspected", Severity.WARNING, "a field is not taken away and given back under another name"),
    Rule("ignore-invalid", Severity.ERROR, f"{IGNORE} maps ids of rules to reasons"),
    Rule("ignore-unused", Severity.WARNING, f"{IGNORE} names only rules that are broken there"),
)
RULES: Final[Mapping[str, Rule]] = {rule.id: rule for rule in _RULES}
"""Every rule by its id."""

_NEVER_IGNORED: Final = frozenset({"ignore-invalid", "ignore-unused"})


@dataclass(frozen=True, slots=True)
class _Breach:
    rule: str
    message: str
    mend: str
    field: Field | None = None
    path: str = ""


def lint(contract: Contract, *, every_version: bool = False) -> list[Finding]:
    """The findings of one contract: its newest version and the ones that are not released, or every version.

    Released versions cannot be mended any more, so the older ones are left out unless asked for.
    """
    chosen = [one for one in contract.versions if every_version or one.release is None or one is contract.newest]
    return [finding for version in chosen for finding in lint_version(version, _before(contract, version))]


def lint_version(version: Version, before: Version | None = None) -> list[Finding]:
    """The findings of one version; `before` is the one to look for renames against."""
    schema = version.schema
    if not isinstance(schema, dict):
        return []
    fields = fields_of(schema)
    ignores = _Ignores(schema)
    breaches = [*_whole(schema, fields), *_objects(fields), *_examples(schema)]
    for field in fields:
        breaches += _field(field)
    if before is not None:
        breaches += _renames(before, version, fields)
    kept = [breach for breach in breaches if not ignores.covers(breach)]
    return [
        Finding(
            breach.rule,
            RULES[breach.rule].severity,
            version.file,
            breach.message,
            breach.mend,
            breach.field.path if breach.field else breach.path,
        )
        for breach in [*kept, *ignores.problems()]
    ]


def _before(contract: Contract, version: Version) -> Version | None:
    older = [one for one in contract.versions if one.number < version.number]
    return older[-1] if older else None


def _whole(schema: Mapping[str, Any], fields: Fields) -> Iterator[_Breach]:
    if not _described(schema):
        yield _Breach("description-missing", "the contract has no description", "add `description`: who says what")
    if not isinstance(schema.get("examples"), list) or not schema["examples"]:
        yield _Breach("example-missing", "the contract has no example", "add one whole payload under `examples`")
    if fields.is_cut:
        yield _Breach("too-large", "it has more fields than a person can read", "split it, or refer to a document")


def _objects(fields: Fields) -> Iterator[_Breach]:
    counted: dict[str, int] = {}
    for field in fields:
        parent = field.path[: -len(field.name)].rstrip(".")
        counted[parent] = counted.get(parent, 0) + 1
    for parent, count in counted.items():
        if count > MAX_PARAMETERS:
            message = f"the object has {count} fields; at most {MAX_PARAMETERS} are easy to fill in right"
            yield _Breach("too-many-fields", message, "group what belongs together, or send two messages", path=parent)
    deepest = max(fields, key=lambda field: field.level, default=None)
    if deepest is not None and deepest.level > MAX_LEVEL:
        message = f"the field lies {deepest.level} levels deep; at most {MAX_LEVEL} are easy to fill in right"
        yield _Breach("too-deep", message, "lift it, or refer to a document", path=deepest.path)


def _field(field: Field) -> Iterator[_Breach]:
    name, types = field.name, field.types
    if not _SNAKE.fullmatch(name):
        yield _Breach("snake-case", f"{name!r} is not snake_case", f"name it {_snake(name)}", field)
    is_boolean = types == ("boolean",)
    says_boolean = name.startswith(("is_", "has_"))
    if is_boolean and not says_boolean:
        yield _Breach("boolean-prefix", "a boolean without is_ or has_", f"name it is_{name} or has_{name}", field)
    if says_boolean and types and not is_boolean:
        message = f"{name} sounds like a boolean and is {' or '.join(types)}"
        yield _Breach("boolean-prefix", message, "make it a boolean, or name it otherwise", field)
    formats = {node["format"] for node in field.nodes if isinstance(node.get("format"), str)}
    if name.endswith("_at") and (types != ("string",) or "date-time" not in formats):
        message = f"{name} sounds like a time and is {_shape(types, formats)}"
        yield _Breach("time-suffix", message, "make it a string with format date-time (ISO 8601 with a zone)", field)
    if "date-time" in formats and not name.endswith("_at"):
        yield _Breach("time-name", f"{name} is a time and does not end in _at", f"name it {name}_at", field)
    if name == "amount" or name.endswith("_amount"):
        currency = "currency" if name == "amount" else f"{name.removesuffix('_amount')}_currency"
        if not {currency, "currency"} & field.siblings:
            message = f"{name} has no currency beside it"
            yield _Breach("amount-currency", message, f"add {currency} (ISO 4217, such as EUR)", field)
    if not any(_described(node) for node in field.nodes):
        yield _Breach("description-missing", "the field has no description", "add `description`", field)
    for node in _with_items(field):
        values = node.get("enum")
        if isinstance(values, list) and len(values) > 1 and not isinstance(node.get(OPEN_ENUM), bool):
            message = "the enum does not say whether it may grow"
            mend = f"add {OPEN_ENUM}: true when readers take words that they do not know, else false"
            yield _Breach("enum-unmarked", message, mend, field)
            break


def _with_items(field: Field) -> Iterator[Mapping[str, Any]]:
    for node in field.nodes:
        yield node
        if isinstance(node.get("items"), dict):
            yield node["items"]


def _examples(schema: dict[str, Any]) -> Iterator[_Breach]:
    """Examples and defaults at the top and at every place below, each against the schema where it stands."""
    left = MAX_EXAMPLES
    for place, node in subschemas(schema):
        examples = node.get("examples")
        values = [("an example", one) for one in examples] if isinstance(examples, list) else []
        values += [("the default", node["default"])] if "default" in node else []
        if not values:
            continue
        document = _standing_alone(schema, node)
        if document is None:
            continue
        validator = validator_of(document)
        for kind, value in values[: max(left, 0)]:
            left -= 1
            problem = next(iter(validator.iter_errors(value)), None)
            if problem is not None:
                at = ".".join(str(part) for part in problem.instance_path)
                message = f"{kind} is not valid{f' at {at}' if at else ''}: {problem.message}"
                mend = "mend it, or the schema"
                yield _Breach("example-invalid", message[:500], mend, path=pointer(place))


def _standing_alone(root: dict[str, Any], node: dict[str, Any]) -> dict[str, Any] | None:
    """The schema of one place with the definitions that it needs, as a document of its own.

    None when a reference leads to the root or into its fields: cut out, it would mean something else.
    """
    if node is root:
        return root
    kept = {"$schema": root["$schema"]} if "$schema" in root else {}
    if not any("$ref" in one for _, one in subschemas(node)):
        return {**node, **kept}
    shared: dict[str, Any] = {name: root[name] for name in ("$defs", "definitions") if name in root}
    for part in (node, shared):
        for _, one in subschemas(part):
            if "$ref" in one and not str(one["$ref"]).startswith(("#/$defs/", "#/definitions/")):
                return None
    return {**kept, **shared, "allOf": [node]}


def _renames(before: Version, after: Version, fields: Fields) -> Iterator[_Breach]:
    """A field that went and one that came in the same object, alike in name or in all that is said of them."""
    old, new = fields_of(before.schema).paths, fields.paths
    gone = [field for path, field in old.items() if path not in new]
    came = [field for path, field in new.items() if path not in old]
    bumped = before.number[0] != after.number[0]
    if bumped:
        return  # an upcaster carries it over; what has to be there is told when an agent starts
    for lost in gone:
        parent = lost.path[: -len(lost.name)]
        for fresh in came:
            aliases = fresh.says("x-aliases")
            if isinstance(aliases, list) and lost.name in aliases:
                continue
            if fresh.path[: -len(fresh.name)] == parent and _alike(lost, fresh):
                message = f"{lost.name} of {show_version(before.number)} seems to be called {fresh.name} now"
                mend = f"keep {lost.name} and add {fresh.name} beside it, or bump the major and write an upcaster"
                yield _Breach("rename-suspected", message, mend, fresh)


def _alike(one: Field, other: Field) -> bool:
    if one.types != other.types:
        return False
    same_words = bool(one.says("description")) and one.says("description") == other.says("description")
    return same_words or difflib.SequenceMatcher(None, one.name, other.name).ratio() >= ALIKE


class _Ignores:
    """What a contract switches off, and whether each was needed."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._places: dict[int, tuple[str, Mapping[str, Any]]] = {}
        self._bad: list[_Breach] = []
        self._used: set[tuple[int, str]] = set()
        self._root = id(schema)
        for place, node in subschemas(schema):
            if IGNORE in node:
                self._read(place, node)

    def _read(self, place: Place, node: Mapping[str, Any]) -> None:
        path, said = pointer(place), node[IGNORE]
        if not isinstance(said, dict):
            mend = "write an object: the rule's id and why"
            self._bad.append(_Breach("ignore-invalid", f"{IGNORE} is not an object", mend, path=path))
            return
        good = {}
        for rule, reason in said.items():
            if rule not in RULES or rule in _NEVER_IGNORED:
                mend = f"name one of {', '.join(sorted(RULES.keys() - _NEVER_IGNORED))}"
                self._bad.append(_Breach("ignore-invalid", f"{rule!r} cannot be ignored", mend, path=path))
            elif not isinstance(reason, str) or not reason.strip():
                mend = "say why, for whoever reads the contract"
                self._bad.append(_Breach("ignore-invalid", f"{rule} is ignored without a reason", mend, path=path))
            else:
                good[rule] = reason
        self._places[id(node)] = (path, good)

    def covers(self, breach: _Breach) -> bool:
        """Whether the breach is ignored where it stands, or for the whole file."""
        nodes: Sequence[Mapping[str, Any]] = breach.field.nodes if breach.field else ()
        for place in (*(id(node) for node in nodes), self._root):
            if breach.rule in self._places.get(place, ("", {}))[1]:
                self._used.add((place, breach.rule))
                return True
        return False

    def problems(self) -> Iterable[_Breach]:
        """What is wrong with the ignores themselves."""
        yield from self._bad
        for place, (path, rules) in self._places.items():
            for rule in rules:
                if (place, rule) not in self._used:
                    yield _Breach("ignore-unused", f"{rule} is ignored and not broken here", "remove it", path=path)


def _described(node: Mapping[str, Any]) -> bool:
    said = node.get("description")
    return isinstance(said, str) and bool(said.strip())


def _shape(types: Sequence[str], formats: Iterable[str]) -> str:
    return " or ".join(types) + "".join(f" ({one})" for one in sorted(formats)) if types else "anything"


def _snake(name: str) -> str:
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_") or "a_name"
