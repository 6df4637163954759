"""What a reader accepts: envelope versions, and majors per message type; and what a sender makes of it (REG-9)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Accepts:
    """What one replica of an agent accepts.

    `majors` has every message type that it handles: the majors, or None when its handler says no version and takes
    any. `versions` has the version of the handler's model, `draft_request@2.1`, where there is one.
    """

    envelopes: frozenset[str] = frozenset()
    majors: Mapping[str, frozenset[int] | None] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def takes(self, type: str, major: int) -> bool | None:
        """Whether it accepts a major; None when it does not handle the type at all."""
        if type not in self.majors:
            return None
        accepted = self.majors[type]
        return accepted is None or major in accepted

    def to_wire(self) -> dict[str, Any]:
        """The JSON of it in a replica's lease."""
        types: dict[str, dict[str, Any]] = {}
        for type, majors in sorted(self.majors.items()):
            types[type] = {} if majors is None else {"majors": sorted(majors)}
            if type in self.versions:
                types[type]["schema"] = self.versions[type]
        return {"envelopes": sorted(self.envelopes), "types": types}

    @classmethod
    def from_wire(cls, value: Any) -> Self:
        """Reads what any program may have written; a part that it cannot read counts as not said."""
        value = value if isinstance(value, dict) else {}
        envelopes = value.get("envelopes")
        types = value.get("types")
        majors: dict[str, frozenset[int] | None] = {}
        versions = {}
        for type, said in (types if isinstance(types, dict) else {}).items():
            said = said if isinstance(said, dict) else {}
            listed = said.get("majors")
            majors[type] = None if not isinstance(listed, list) else frozenset(n for n in listed if _is_major(n))
            if isinstance(said.get("schema"), str):
                versions[type] = said["schema"]
        known = envelopes if isinstance(envelopes, list) else []
        return cls(frozenset(one for one in known if isinstance(one, str)), majors, versions)


def agreed(ours: Sequence[int], theirs: Collection[Accepts], type: str) -> int | None:
    """The major to send to replicas that accept `theirs`; `ours` are the majors that can be written, best first.

    The first that every replica accepts; else, as in a rolling upgrade, the first that any of them does. None when
    there is none. Replicas that do not handle the type have no say; without any other, the best.
    """
    voices = [one for one in theirs if type in one.majors]
    for enough in (all, any):
        for major in ours:
            if not voices or enough(one.takes(type, major) for one in voices):
                return major
    return None


def _is_major(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
