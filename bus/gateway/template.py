"""Texts to fill in: `{name}` from the arguments, `${NAME}` from the environment, `{{` and `}}` as braces."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

_PARTS = re.compile(r"\$\{(?P<variable>[A-Za-z_][A-Za-z0-9_]*)\}|(?P<brace>\{\{|\}\})|\{(?P<name>[A-Za-z_]\w*)\}|[{}]")


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed text. Each part is literal text, or the name of an argument. `secrets` came from the environment."""

    parts: tuple[tuple[str, bool], ...] = field(repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str]) -> Template:
        """Reads a text, and fills in the environment. Raises ValueError for a lone brace, LookupError for a variable.

        The LookupError has the name of the variable that the environment does not have.
        """
        parts: list[tuple[str, bool]] = []
        secrets: list[str] = []
        end = 0
        for found in _PARTS.finditer(text):
            parts.append((text[end : found.start()], False))
            end = found.end()
            if found["variable"]:
                if found["variable"] not in environment:
                    raise LookupError(found["variable"])
                secrets.append(environment[found["variable"]])
                parts.append((secrets[-1], False))
            elif found["brace"]:
                parts.append((found["brace"][0], False))
            elif found["name"]:
                parts.append((found["name"], True))
            else:
                raise ValueError(f"a lone {found[0]!r} at character {found.start()}; write it twice to mean itself")
        parts.append((text[end:], False))
        return cls(tuple(part for part in parts if part[0]), tuple(one for one in secrets if one))

    @property
    def names(self) -> tuple[str, ...]:
        """The arguments that it needs."""
        return tuple(text for text, is_name in self.parts if is_name)

    @property
    def only_name(self) -> str | None:
        """The argument that is all there is of it."""
        return self.parts[0][0] if len(self.parts) == 1 and self.parts[0][1] else None

    @property
    def beginning(self) -> str:
        """The literal text before the first argument."""
        return "".join(text for text, _ in self._until_name())

    def fill(self, arguments: Mapping[str, Any], write: Callable[[str, Any], str]) -> str | None:
        """The text; None when an argument is absent or null. `write(name, value)` says how a value is written."""
        if any(arguments.get(name) is None for name in self.names):
            return None
        return "".join(write(text, arguments[text]) if is_name else text for text, is_name in self.parts)

    def _until_name(self) -> Iterator[tuple[str, bool]]:
        for part in self.parts:
            if part[1]:
                return
            yield part


def written(value: Any) -> str:
    """A value as text: text as it is, everything else as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()
