"""Which envelope versions this reader can read (ENV-3)."""

from collections.abc import Mapping
from typing import Any, Final

from bus.envelope.grammar import MISSING, malformed
from bus.errors import Rejected

CURRENT: Final = "1.2"
SUPPORTED: Final = frozenset({"1.2"})

_SHOWN_CHARS: Final = 64


def check(fields: Mapping[str, Any]) -> None:
    """Refuse a message whose version is not in the supported set.

    Looks at `version` alone: another version may have another shape. Raises Rejected
    `protocol.unsupported_version` (details.version, details.supported) for an unknown string, and
    `protocol.malformed` when `version` is missing or not a string.
    """
    version = fields.get("version", MISSING)
    if isinstance(version, str):
        if version in SUPPORTED:
            return
        supported, shown = sorted(SUPPORTED), version[:_SHOWN_CHARS]
        raise Rejected(
            "protocol.unsupported_version",
            f"`version` {shown!a} cannot be read here; write one of {', '.join(supported)}",
            version=shown,
            supported=supported,
        )
    raise malformed("version", "a string such as 1.2", version)
