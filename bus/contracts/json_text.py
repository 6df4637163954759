"""JSON as the catalogue reads it: strict, bounded, and without the accidents that a merge leaves behind."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NoReturn

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 100

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.S)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class NotJson(ValueError):
    """The bytes are not the JSON that a catalogue holds; the message is one line that says why."""


def parse(data: bytes) -> Any:
    """The value of a JSON file.

    Refuses what a lenient reader would let through: a name twice in one object (what a merge of two branches makes),
    NaN and infinity, lone surrogates, over 4 MiB, over 100 levels. Raises NotJson.
    """
    if len(data) > MAX_FILE_BYTES:
        raise NotJson(f"it has {len(data)} bytes; the limit is {MAX_FILE_BYTES}")
    _check_depth(data)
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_object, parse_constant=_refuse)
    except NotJson:
        raise
    except UnicodeDecodeError as problem:
        raise NotJson(f"not UTF-8: {problem.reason} at byte {problem.start}") from None
    except json.JSONDecodeError as problem:
        raise NotJson(f"not JSON: {problem.msg} at line {problem.lineno}, column {problem.colno}") from None
    except ValueError as problem:
        raise NotJson(f"not JSON: {problem}") from None
    if _SURROGATE.search(data):
        _check_texts(value)
    return value


def dump(value: Any) -> bytes:
    """A value as the files of the catalogue are written: two spaces, keys as they come, one line end at the end."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8")


def _object(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise NotJson(f"the name {name!r} stands twice in one object")
        found[name] = value
    return found


def _refuse(constant: str) -> NoReturn:
    raise NotJson(f"{constant} is not JSON")


def _check_depth(data: bytes) -> None:
    """Counts brackets outside of strings, before anything recurses over them."""
    depth = 0
    for token in _TOKEN.findall(data):
        if token in (b"{", b"["):
            depth += 1
            if depth > MAX_DEPTH:
                raise NotJson(f"it has more than {MAX_DEPTH} levels")
        elif token in (b"}", b"]"):
            depth -= 1


def _check_texts(value: Any) -> None:
    """Refuses half a surrogate pair, which no file can hold when it is written again."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            waiting += one
        elif isinstance(one, str):
            try:
                one.encode("utf-8")
            except UnicodeEncodeError:
                raise NotJson("half of a surrogate pair in a string") from None
