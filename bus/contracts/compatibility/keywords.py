"""How each keyword is read: its shape is checked, its value brought to one form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from .node import Node
from .values import CannotTell, exact, is_number, key

TYPES: Final = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})

COUNTS: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_CONTAINS_COUNTS: Final = ("minContains", "maxContains")
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_TEXTS: Final = ("pattern", "format", "contentEncoding", "contentMediaType")
_LISTS: Final = ("allOf", "anyOf", "oneOf")


class Reader(Protocol):
    """What a keyword needs of the document that is being read: where it is, and nodes for inner schemas."""

    at: str

    def node(self, raw: Any, at: str) -> Node:
        """The node of an inner schema."""
        ...


def _count(reader: Reader, words: dict[str, Any], word: str, value: Any) -> None:
    if not is_number(value) or not isinstance(exact(value), int) or value < 0:
        raise CannotTell(f"{word} is a whole number from 0, not {value!r:.40}")
    words[word] = exact(value)


def _bound(reader: Reader, words: dict[str, Any], word: str, value: Any) -> None:
    if isinstance(value, bool):
        raise CannotTell(f"{word} is a boolean, as in draft-04; write the bound itself")
    if not is_number(value):
        raise CannotTell(f"{word} is a number, not {value!r:.40}")
    words[word] = exact(value)


def _multiple(reader: Reader, words: dict[str, Any], word: str, value: Any) -> None:
    if not is_number(value) or value <= 0:
        raise CannotTell(f"{word} is a number above 0, not {value!r:.40}")
    words[word] = exact(value)


def _text(reader: Reader, words: dict[str, Any], word: str, value: Any) -> None:
    if not isinstance(value, str):
        raise CannotTell(f"{word} is a string, not {value!r:.40}")
    words[word] = value


def _type(reader: Reader, words: dict[str, Any], word: str, value: Any) -> None:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(n, str) and n in TYPES for n in names):
        raise CannotTell(f"type is one of {', '.join(sorted(TYPES))}, or a list of them, not {value!r:.60}")
    words[word] = frozenset(names) - ({"integer"} if "number" in names else frozenset())


def _enum(reader: Reader, words: dict[str, Any], word: str, value: Any) -> None:
    if not isinstance(value, list):
        raise CannotTell("enum is a list")
    words[word] = {key(item): item for item in value}


def _const(reader: Reader, words: dict[str, Any], word: str, value: Any) -> None:
    words[word] = {key(value): value}


def _flag(reader: Reader, words: dict[str, Any], word: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise CannotTell(f"{word} is true or false, not {value!r:.40}")
    if value:
        words["open" if word == "x-open-enum" else word] = True


def _names(word: str, value: Any) -> frozenset[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise CannotTell(f"{word} is a list of names, not {value!r:.40}")
    return frozenset(value)


def _required(reader: Reader, words: dict[str, Any], word: str, value: Any) -> None:
    if names := _names(word, value):
        words[word] = names


def _one(reader: Reader, words: dict[str, Any], word: str, value: Any) -> None:
    if word == "items" and isinstance(value, list):
        words["prefixItems"] = _many(reader, word, value, empty=True)
    else:
        words[word] = reader.node(value, f"{reader.at}/{word}")


def _many(reader: Reader, word: str, value: Any, *, empty: bool = False) -> tuple[Node, ...]:
    if not isinstance(value, list) or not (value or empty):
        raise CannotTell(f"{word} is a list of schemas, not {value!r:.40}")
    return tuple([reader.node(item, f"{reader.at}/{word}/{index}") for index, item in enumerate(value)])


def _several(reader: Reader, words: dict[str, Any], word: str, value: Any) -> None:
    words[word] = _many(reader, word, value)


def _mapping(word: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise CannotTell(f"{word} is an object, not {value!r:.40}")
    return value


def _named(reader: Reader, words: dict[str, Any], word: str, value: Any) -> None:
    members = _mapping(word, value)
    words[word] = {name: reader.node(inner, f"{reader.at}/{word}/{name}") for name, inner in members.items()}
    if word == "properties":
        plain = {name: inner for name, inner in members.items() if isinstance(inner, dict)}
        if defaults := frozenset(name for name, inner in plain.items() if "default" in inner):
            words["defaults"] = defaults
        aliases = {n: _names("x-aliases", inner["x-aliases"]) for n, inner in plain.items() if "x-aliases" in inner}
        if aliases:
            words["aliases"] = aliases


def _dependent(reader: Reader, words: dict[str, Any], word: str, value: Any) -> None:
    """`dependentRequired`; `dependencies` of draft-07 holds lists of names and schemas mixed."""
    schemas = {}
    names = {}
    for name, inner in _mapping(word, value).items():
        if isinstance(inner, list) or word == "dependentRequired":
            names[name] = _names(word, inner)
        else:
            schemas[name] = reader.node(inner, f"{reader.at}/{word}/{name}")
    if names:
        words["dependentRequired"] = names
    if schemas:
        words["dependentSchemas"] = schemas


def _unsupported(reader: Reader, words: dict[str, Any], word: str, value: Any) -> None:
    words["$dynamicRef"] = (word, key(value))


def _recursive(reader: Reader, words: dict[str, Any], word: str, value: Any) -> None:
    raise CannotTell("$recursiveRef is of 2019-09; write $ref")


READERS: Final[dict[str, Callable[[Reader, dict[str, Any], str, Any], None]]] = {
    **dict.fromkeys((*COUNTS, *_CONTAINS_COUNTS), _count),
    **dict.fromkeys(_BOUNDS, _bound),
    **dict.fromkeys(_TEXTS, _text),
    **dict.fromkeys(_LISTS, _several),
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), _named),
    **dict.fromkeys(
        ("additionalProperties", "propertyNames", "items", "contains", "not", "if", "then", "else",
         "unevaluatedProperties", "unevaluatedItems"), _one,
    ),
    **dict.fromkeys(("uniqueItems", "x-open-enum"), _flag),
    **dict.fromkeys(("dependentRequired", "dependencies"), _dependent),
    "multipleOf": _multiple, "type": _type, "enum": _enum, "const": _const, "required": _required,
    "prefixItems": _several, "$dynamicRef": _unsupported, "$recursiveRef": _recursive,
}  # fmt: skip
