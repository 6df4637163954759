"""The lock file of a catalogue: who owns each contract, how it may change, and what is released."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, Final

from bus.contracts.json_text import dump, parse
from bus.contracts.version import Number, parse_version, show_version
from bus.envelope.grammar import is_agent_name, is_type_name

LOCK_NAME: Final = "lock.json"
FORMAT: Final = 1
MODES: Final = (
    "backward", "forward", "full", "backward_transitive", "forward_transitive", "full_transitive",
)  # fmt: skip
DEFAULT_MODE: Final = "full_transitive"
ANYBODY: Final = "*"

_SHA256 = re.compile(r"[0-9a-f]{64}")
_MODEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*")


class LockError(ValueError):
    """The lock file is not what it must be; the message names the place."""


@dataclass(frozen=True, slots=True)
class Release:
    """One released version: the digest of its file, the day, in a few words what changed, and, when it breaks somebody
    all the same, why that was accepted.
    """

    sha256: str
    released: date
    note: str = ""
    accepted: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """What the lock file says about one contract.

    `mode` is how a minor may differ from the ones before it, `strict` compares schema with schema instead of writer
    with reader, `model` is the pydantic model that the newest version is generated from (`module:Name`, or None for
    plain JSON Schema), `senders` and `receivers` are agent names (`*`: anybody), `reserved` maps the path of a
    removed field to why it is gone.
    """

    owner: str = ""
    mode: str = DEFAULT_MODE
    strict: bool = False
    model: str | None = None
    senders: tuple[str, ...] = ()
    receivers: tuple[str, ...] = ()
    reserved: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[Number, Release] = field(default_factory=dict)

    def released(self, number: Number, release: Release, reserved: Mapping[str, str]) -> Entry:
        """This entry with one more released version and the names that it retires."""
        versions = dict(sorted({**self.versions, number: release}.items()))
        return replace(self, versions=versions, reserved={**self.reserved, **reserved})


@dataclass(frozen=True, slots=True)
class Lock:
    """The whole lock file. `ignore`: folders of the catalogue that hold something else."""

    ignore: tuple[str, ...] = ()
    contracts: Mapping[str, Entry] = field(default_factory=dict)

    @classmethod
    def read(cls, data: bytes) -> Lock:
        """Reads `lock.json`. Raises LockError, naming the place; unknown members are refused, since a misspelt
        `mode` that is ignored would be a promise that nobody keeps.
        """
        try:
            value = parse(data)
        except ValueError as problem:
            raise LockError(str(problem)) from None
        top = _members(value, "$", {"format", "ignore", "contracts"})
        if top.get("format") != FORMAT:
            raise LockError(f"format must be {FORMAT}; another one needs another version of this tool")
        ignore = _strings(top.get("ignore", []), "ignore", lambda name: "/" not in name and name != "", "a folder name")
        contracts = _members(top.get("contracts", {}), "contracts", None)
        for name in contracts:
            if not is_type_name(name):
                raise LockError(f"contracts: {name!r} is not a message type (snake_case, 1 to 64 characters)")
        return cls(ignore, {name: _entry(contracts[name], f"contracts.{name}") for name in sorted(contracts)})

    def write(self) -> bytes:
        """The file, with its contracts and versions sorted, so that two teams rarely meet in one line."""
        contracts = {name: _wire(self.contracts[name]) for name in sorted(self.contracts)}
        return dump({"format": FORMAT, "ignore": list(self.ignore), "contracts": contracts})

    def with_entry(self, type: str, entry: Entry) -> Lock:
        """This lock with the entry of one contract replaced or added."""
        return replace(self, contracts={**self.contracts, type: entry})


def _entry(value: Any, at: str) -> Entry:
    names = {"owner", "mode", "strict", "model", "senders", "receivers", "reserved", "versions"}
    found = _members(value, at, names)
    mode, strict, model = found.get("mode", DEFAULT_MODE), found.get("strict", False), found.get("model")
    if mode not in MODES:
        raise LockError(f"{at}.mode must be one of {', '.join(MODES)}; it is {mode!r}")
    if not isinstance(strict, bool):
        raise LockError(f"{at}.strict must be true or false")
    if model is not None and not (isinstance(model, str) and _MODEL.fullmatch(model)):
        raise LockError(f"{at}.model must be module:Name; it is {model!r}")
    reserved = _members(found.get("reserved", {}), f"{at}.reserved", None)
    versions = _members(found.get("versions", {}), f"{at}.versions", None)
    return Entry(
        owner=_text(found.get("owner", ""), f"{at}.owner"),
        mode=mode,
        strict=strict,
        model=model,
        senders=_strings(found.get("senders", []), f"{at}.senders", _is_party, "an agent name or *"),
        receivers=_strings(found.get("receivers", []), f"{at}.receivers", _is_party, "an agent name or *"),
        reserved={path: _text(why, f"{at}.reserved.{path}") for path, why in reserved.items()},
        versions=dict(sorted(_release(name, one, f"{at}.versions.{name}") for name, one in versions.items())),
    )


def _release(name: str, value: Any, at: str) -> tuple[Number, Release]:
    number = parse_version(name)
    if number is None:
        raise LockError(f"{at}: {name!r} is not a version such as 1.0")
    found = _members(value, at, {"sha256", "released", "note", "accepted"})
    sha256, released = found.get("sha256"), found.get("released")
    if not (isinstance(sha256, str) and _SHA256.fullmatch(sha256)):
        raise LockError(f"{at}.sha256 must be 64 lower-case hex digits")
    try:
        day = date.fromisoformat(released) if isinstance(released, str) and len(released) == 10 else None
    except ValueError:
        day = None
    if day is None:
        raise LockError(f"{at}.released must be a day such as 2026-01-31; it is {released!r}")
    note, accepted = (_text(found.get(name, ""), f"{at}.{name}") for name in ("note", "accepted"))
    return number, Release(sha256, day, note, accepted)


def _wire(entry: Entry) -> dict[str, Any]:
    found: dict[str, Any] = {"owner": entry.owner, "mode": entry.mode}
    if entry.strict:
        found["strict"] = True
    if entry.model is not None:
        found["model"] = entry.model
    found |= {"senders": list(entry.senders), "receivers": list(entry.receivers)}
    found["reserved"] = dict(sorted(entry.reserved.items()))
    found["versions"] = {
        show_version(number): {"sha256": release.sha256, "released": release.released.isoformat()}
        | {name: said for name, said in (("note", release.note), ("accepted", release.accepted)) if said}
        for number, release in sorted(entry.versions.items())
    }
    return found


def _members(value: Any, at: str, known: set[str] | None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise LockError(f"{at} must be an object")
    unknown = sorted(value.keys() - known) if known is not None else []
    if unknown:
        raise LockError(f"{at} has an unknown member {unknown[0]!r}; known are {', '.join(sorted(known or ()))}")
    return value


def _strings(value: Any, at: str, is_good: Callable[[str], bool], what: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise LockError(f"{at} must be an array")
    for one in value:
        if not isinstance(one, str) or not is_good(one):
            raise LockError(f"{at}: {one!r} is not {what}")
    return tuple(value)


def _text(value: Any, at: str) -> str:
    if not isinstance(value, str):
        raise LockError(f"{at} must be a string")
    return value


def _is_party(name: str) -> bool:
    return name == ANYBODY or is_agent_name(name)
