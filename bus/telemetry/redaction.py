"""Redaction: what a log line must not show. By the name of a field, and by what a secret looks like in a text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

HIDDEN = "[redacted]"
MAX_DEPTH = 64
MAX_VALUES = 50_000
TOO_MUCH = "[too much]"

# Parts of names, compared without case, `-`, `_` and blanks.
SECRET_NAMES = (
    "password", "passwd", "pwd", "passphrase", "secret", "token", "apikey", "accesskey", "privatekey", "authorization",
    "credential", "cookie", "sessionkey", "signature",
)  # fmt: skip
# Names that contain one of these and are no secrets.
NO_SECRETS = frozenset({"tokens", "tokenusage", "tokenizer", "secretary"})
# Numbers under such names count a model's tokens: prompt_tokens, token_count. One token may be a secret number.
_COUNTS = re.compile(r"tokens|token(?:count|limit|budget)")
_NUMBER = re.compile(r"[+-]?\d{1,15}(?:\.\d{1,15})?")

_SHAPES = (
    re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"),
    re.compile(r"\b(?:sk|pk|rk|xox[abprs]|gh[pousr]|github_pat|glpat|hf)[-_][\w-]{16,}"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"\bAIza[\w-]{30,}"),
    # Seeds of NATS: of accounts, clusters, servers, operators, curves and users.
    re.compile(r"\bS[ACNOXU][A-Z2-7]{56}\b"),
)
_SCHEME = re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{6,}", re.IGNORECASE)
# The user too: a token of NATS stands there alone.
_ADDRESS = re.compile(r"(?<=://)[^\s/@]{1,700}(?=@)")
_FOLD = re.compile(r"[\s_-]+")
# `name=value`, `"name": "value"`, `name: value`. Without overlap and bounded, so that no text makes it slow.
_NAME = re.compile(r"""(?<![\w-])(?P<name>[\w-]{1,200})\\?["']?\s{0,8}[:=]\s{0,8}""")
_VALUE = re.compile(
    r"""\\"(?:[^"\\]|\\[^"])*(?:\\")?|"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?|(?:(?:bearer|basic|token|apikey)\s{1,8})?[^\s,;&"'(){}\[\]]+""",
    re.IGNORECASE,
)
# What an HTTP header of these names holds goes on after a blank: `Token abc`, `a=b; c=d`.
_HEADERS = ("authorization", "cookie")
_REST = re.compile(r"""[^\r\n"'\\{}]+""")
# Brackets and texts, in which no bracket counts.
_PARTS = re.compile(r"""\\?"(?:[^"\\]|\\[^"])*\\?"|'(?:[^'\\]|\\.)*'|[(\[{]|[)\]}]""")


class Redaction:
    """Hides secrets in values and texts.

    `more_names` are further names of fields, whole ones, in which `*` stands for anything.
    """

    def __init__(self, more_names: Iterable[str] = ()) -> None:
        self._more = tuple(filter(None, map(_folded, more_names)))
        self._known: dict[str, bool] = {}

    def hides(self, name: str) -> bool:
        """Whether the value of a field of this name is hidden."""
        known = self._known.get(name)
        if known is None:
            folded = _folded(name)
            known = folded not in NO_SECRETS and any(part in folded for part in SECRET_NAMES)
            known = known or any(fnmatchcase(folded, pattern) for pattern in self._more)
            # Names come from strangers too.
            if len(self._known) < 4096:
                self._known[name] = known
        return known

    def value(self, value: Any) -> Any:
        """A JSON value without secrets: a copy; whatever JSON does not have becomes its text."""
        return self._value(value, MAX_DEPTH, [MAX_VALUES])

    def _value(self, value: Any, depth: int, left: list[int]) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return self.text(value)
        left[0] -= 1
        if depth == 0 or left[0] < 0:
            return TOO_MUCH
        if isinstance(value, Mapping):
            found = {}
            for name, inner in list(value.items()):
                text = name if isinstance(name, str) else spoken(name)
                is_hidden = inner is not None and self.hides(text) and not self._is_count(text, inner)
                found[text] = HIDDEN if is_hidden else self._value(inner, depth - 1, left)
            return found
        if isinstance(value, list | tuple | set | frozenset):
            return [self._value(inner, depth - 1, left) for inner in list(value)]
        if isinstance(value, bytes | bytearray):
            return self.text(bytes(value).decode("utf-8", "replace"))
        return self.text(spoken(value))

    def _is_count(self, name: str, value: object) -> bool:
        folded = _folded(name)
        return (
            isinstance(value, int | float)
            and _COUNTS.search(folded) is not None
            and not any(fnmatchcase(folded, pattern) for pattern in self._more)
        )

    def text(self, text: str) -> str:
        """A text without what looks like a secret."""
        for shape in _SHAPES:
            text = shape.sub(HIDDEN, text)
        text = self._without_pairs(text)
        text = _SCHEME.sub(rf"\1 {HIDDEN}", text)
        return _ADDRESS.sub(HIDDEN, text)

    def _without_pairs(self, text: str) -> str:
        parts, end = [], 0
        for found in _NAME.finditer(text):
            if found.start() < end or not self.hides(found["name"]):
                continue
            value_end = _value_end(text, found.end(), _folded(found["name"]))
            value = text[found.end() : value_end]
            if value and not (_NUMBER.fullmatch(value) and self._is_count(found["name"], 0)):
                parts += [text[end : found.end()], HIDDEN]
                end = value_end
        return "".join([*parts, text[end:]])


def _value_end(text: str, start: int, name: str) -> int:
    """Where the value that begins at `start` ends; `start` itself where there is none."""
    if text[start : start + 1] in ("(", "[", "{"):
        depth = 0
        for part in _PARTS.finditer(text, start):
            depth += (part[0] in "([{") - (part[0] in ")]}")
            if depth == 0:
                return part.end()
        # Cut off: all that is left belongs to it.
        return len(text)
    rest = _REST if any(part in name for part in _HEADERS) else _VALUE
    value = rest.match(text, start) or _VALUE.match(text, start)
    return start if value is None else value.end()


def spoken(value: object) -> str:
    """The text of any object, also of one that cannot tell it."""
    try:
        return str(value)
    except (ArithmeticError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError, OSError) as p:
        return f"<{type(value).__name__} whose text raises {type(p).__name__}>"


def _folded(name: str) -> str:
    return _FOLD.sub("", name).lower()
