"""Names of capabilities as the names of a model's tools, and back (TOOL-4).

Models take `[A-Za-z0-9_-]{1,64}`; capabilities are called `calculator.add` and have up to 128 characters. A dot becomes
a hyphen, which no capability's name has. What is too long keeps its beginning, and gets two hyphens and a hash of the
whole, which no other name has. So a name depends on nothing but the capability's name, in every process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

MAX_TOOL_NAME_CHARS = 64
_HASH_CHARS = 12
_SEPARATOR = "--"


def tool_name(capability: str) -> str:
    """The name of a capability's tool."""
    name = capability.replace(".", "-")
    if len(name) <= MAX_TOOL_NAME_CHARS:
        return name
    digest = hashlib.sha256(capability.encode()).hexdigest()[:_HASH_CHARS]
    return f"{name[: MAX_TOOL_NAME_CHARS - _HASH_CHARS - len(_SEPARATOR)]}{_SEPARATOR}{digest}"


@dataclass(frozen=True, slots=True)
class ToolNames:
    """The names of some capabilities in both directions."""

    tools: Mapping[str, str]
    capabilities: Mapping[str, str]

    @classmethod
    def of(cls, capabilities: Iterable[str]) -> Self:
        """The names of these capabilities. Raises ValueError for two whose tools would have one name."""
        tools = {name: tool_name(name) for name in capabilities}
        back: dict[str, str] = {}
        for name, tool in tools.items():
            if back.setdefault(tool, name) != name:
                raise ValueError(f"{name!r} and {back[tool]!r} would be one tool, {tool!r}; rename one of them")
        return cls(MappingProxyType(tools), MappingProxyType(back))
