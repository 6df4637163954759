"""Redaction: what a log line must not show. By the name of a field, and by what a secret looks like in a text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

HIDDEN = "[redacted]"
MAX_DEPTH = 64
TOO_DEEP = "[too deep]"

# Parts of names, compared without case, `-`, `_` and blanks.
SECRET_NAMES = (
    "password", "passwd", "passphrase", "secret", "token", "apikey", "accesskey", "privatekey", "authorization",
    "credential", "cookie", "sessionkey", "signature",
)  # fmt: skip
# Names that contain one of these and are counts, not secrets.
NO_SECRETS = frozenset({"tokens", "maxtokens", "inputtokens", "outputtokens", "totaltokens", "tokencount"})

_SHAPES = (
    re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"),
    re.compile(r"\b(?:sk|pk|rk|xox[abprs]|gh[pousr]|github_pat|glpat|hf)[-_][\w-]{16,}"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"\bAIza[\w-]{30,}"),
)
_SCHEME = re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{6,}", re.IGNORECASE)
_ADDRESS = re.compile(r"(?<=://)[^\s/@:]*:[^\s/@]+(?=@)")
_FOLD = re.compile(r"[\s_-]+")


class Redaction:
    """Hides secrets in values and texts; `more_names` are further names of fields, as parts of names."""

    def __init__(self, more_names: Iterable[str] = ()) -> None:
        self._names = frozenset(filter(None, map(_folded, (*SECRET_NAMES, *more_names))))
        self._known: dict[str, bool] = {}
        # `name=value`, `"name": "value"`, `name: value`; the name may have more letters around it.
        parts = "|".join(r"[\s_-]?".join(map(re.escape, name)) for name in sorted(self._names))
        self._pairs = re.compile(
            rf"""(?P<name>[\w-]{{0,40}}(?:{parts})[\w-]{{0,40}})(?P<between>\\?["']?\s*[:=]\s*)"""
            r"""(?P<value>\\?"(?:[^"\\]|\\.)*"?|\\?'(?:[^'\\]|\\.)*'?|(?:(?:bearer|basic)\s+)?[^\s,;&"'(){}\[\]]+)""",
            re.IGNORECASE,
        )

    def hides(self, name: str) -> bool:
        """Whether the value of a field of this name is hidden."""
        known = self._known.get(name)
        if known is None:
            folded = _folded(name)
            known = folded not in NO_SECRETS and any(part in folded for part in self._names)
            # Names come from strangers too.
            if len(self._known) < 4096:
                self._known[name] = known
        return known

    def value(self, value: Any, depth: int = 0) -> Any:
        """A JSON value without secrets: a copy; whatever JSON does not have becomes its text."""
        if depth > MAX_DEPTH:
            return TOO_DEEP
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                (text := name if isinstance(name, str) else spoken(name)): HIDDEN
                if self.hides(text) and inner is not None
                else self.value(inner, depth + 1)
                for name, inner in list(value.items())
            }
        if isinstance(value, list | tuple | set | frozenset):
            return [self.value(inner, depth + 1) for inner in list(value)]
        if isinstance(value, bytes | bytearray):
            return self.text(bytes(value).decode("utf-8", "replace"))
        return self.text(spoken(value))

    def text(self, text: str) -> str:
        """A text without what looks like a secret."""
        for shape in _SHAPES:
            text = shape.sub(HIDDEN, text)
        text = self._pairs.sub(self._without_value, text)
        text = _SCHEME.sub(rf"\1 {HIDDEN}", text)
        return _ADDRESS.sub(HIDDEN, text)

    def _without_value(self, found: re.Match[str]) -> str:
        if not self.hides(found["name"]):
            return found[0]
        return f"{found['name']}{found['between']}{HIDDEN}"


def spoken(value: object) -> str:
    """The text of any object, also of one that cannot tell it."""
    try:
        return str(value)
    except (ArithmeticError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError, OSError) as p:
        return f"<{type(value).__name__} whose text raises {type(p).__name__}>"


def _folded(name: str) -> str:
    return _FOLD.sub("", name).lower()
