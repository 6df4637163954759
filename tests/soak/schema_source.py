"""Random JSON Schemas, changed copies of them, and values that often satisfy them."""

from __future__ import annotations

import copy
import random
from typing import Any

NAMES = ("a", "b", "c", "x_d")
SCALARS: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    1.0,
    2,
    3,
    -1,
    0.5,
    1.5,
    7,
    "",
    "a",
    "ab",
    "abc",
    "x_1",
    "2024-01-01",
)
PATTERNS = ("^a", "^x_", "b$")
DRAFTS = {
    "2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft-07": "http://json-schema.org/draft-07/schema#",
}


class Source:
    """Random schemas and values of one dialect; `models` keeps to what has an exact writer."""

    def __init__(self, random: random.Random, draft: str) -> None:
        self.random = random
        self.draft = draft
        self.definitions = "$defs" if draft == "2020-12" else "definitions"

    def document(self) -> dict[str, Any]:
        """A schema with two definitions that may refer to each other and to the root, and its `$schema`."""
        root = self.schema(3)
        while not isinstance(root, dict):
            root = self.schema(3)
        root |= {"$schema": DRAFTS[self.draft]}
        return root | {self.definitions: {"p": self.schema(2), "q": self.schema(1)}}

    def schema(self, depth: int) -> Any:
        pick = self.random
        if depth <= 0 or pick.random() < 0.15:
            return pick.choice(
                [True, {}, {"type": "string"}, {"type": "integer"}, {"type": "number"}, self.scalar(), False]
            )
        made = pick.choice(
            [self.scalar, self.scalar, self.object, self.object, self.object, self.array, self.combined, self.reference]
        )
        schema = made(depth)
        if pick.random() < 0.2:
            schema |= pick.choice([self.scalar, self.object, self.array, self.combined])(depth - 1)
        return schema

    def scalar(self, depth: int = 0) -> dict[str, Any]:
        pick = self.random
        choices: list[dict[str, Any]] = [
            {"type": pick.choice(["string", "integer", "number", "null", "boolean", "object", "array"])},
            {"type": pick.sample(["string", "integer", "number", "null", "boolean", "object"], 2)},
            {"enum": pick.sample(SCALARS, 3)},
            {"const": pick.choice(SCALARS)},
            {"type": pick.choice(["integer", "number"]), "minimum": pick.choice([0, 0.5, 1, 2])},
            {"maximum": pick.choice([0, 1.5, 2, 3]), "exclusiveMinimum": pick.choice([-1, 0, 1])},
            {"type": "number", "multipleOf": pick.choice([0.5, 1, 1.5, 2, 3])},
            {"type": "string", "minLength": pick.choice([0, 1, 2]), "maxLength": pick.choice([1, 2, 3])},
            {"pattern": pick.choice(PATTERNS)},
            {"exclusiveMaximum": pick.choice([1, 2, 3])},
            {"type": "string", "format": pick.choice(["date", "ipv4"])},
        ]
        return pick.choice(choices)

    def object(self, depth: int) -> dict[str, Any]:
        pick = self.random
        names = pick.sample(NAMES, pick.choice([0, 1, 2, 2, 3]))
        schema: dict[str, Any] = {"properties": {name: self.property(depth - 1) for name in names}}
        if pick.random() < 0.8:
            schema["type"] = "object"
        if names and pick.random() < 0.5:
            schema["required"] = pick.sample(NAMES, 1) if pick.random() < 0.15 else pick.sample(names, 1)
        chance: dict[str, tuple[float, Any]] = {
            "additionalProperties": (0.35, lambda: pick.choice([False, False, True, self.schema(depth - 2)])),
            "patternProperties": (0.15, lambda: {pick.choice(PATTERNS): self.schema(depth - 1)}),
            "propertyNames": (0.08, lambda: pick.choice([{"pattern": "^x_"}, {"maxLength": 1}, {"enum": ["a", "b"]}])),
            "minProperties": (0.08, lambda: pick.choice([1, 2])),
            "maxProperties": (0.08, lambda: pick.choice([1, 2])),
        }
        if self.draft == "2020-12":
            chance |= {
                "dependentRequired": (0.08, lambda: {pick.choice(NAMES): [pick.choice(NAMES)]}),
                "dependentSchemas": (0.08, lambda: {pick.choice(NAMES): self.schema(depth - 1)}),
                "unevaluatedProperties": (0.05, lambda: pick.choice([False, {"type": "string"}])),
            }
        else:
            chance["dependencies"] = (
                0.1,
                lambda: {pick.choice(NAMES): pick.choice([[pick.choice(NAMES)], self.schema(depth - 1)])},
            )
        for word, (odds, make) in chance.items():
            if pick.random() < odds:
                schema[word] = make()
        if self.draft == "draft-07":  # which cannot say what a closed writer is, so writers are open there
            schema.setdefault("additionalProperties", True)
        return schema

    def property(self, depth: int) -> Any:
        schema = self.schema(depth)
        if self.draft == "2020-12" and isinstance(schema, dict) and "$ref" not in schema and self.random.random() < 0.2:
            schema["default"] = 1
        return schema

    def array(self, depth: int) -> dict[str, Any]:
        pick = self.random
        schema: dict[str, Any] = {"type": "array"} if pick.random() < 0.8 else {}
        if pick.random() < 0.7:
            schema["items"] = self.schema(depth - 1)
        if pick.random() < 0.4:
            prefix = [self.schema(depth - 1) for _ in range(pick.choice([1, 2]))]
            if self.draft == "2020-12":
                schema["prefixItems"] = prefix
            else:
                rest = schema.pop("items", None)
                schema |= {"items": prefix} | ({} if rest is None else {"additionalItems": rest})
        for word, value in (("minItems", 1), ("maxItems", pick.choice([1, 2])), ("uniqueItems", True)):
            if pick.random() < 0.15:
                schema[word] = value
        if pick.random() < 0.12:
            schema["contains"] = self.schema(depth - 1)
            if self.draft == "2020-12":
                schema |= pick.choice([{}, {"minContains": 2}, {"maxContains": 1}, {"minContains": 0}])
        return schema

    def combined(self, depth: int) -> dict[str, Any]:
        pick = self.random
        word = pick.choice(["anyOf", "anyOf", "oneOf", "oneOf", "allOf", "not", "if"])
        if word == "not":
            return {"not": self.schema(depth - 1)}
        if word == "if":
            return {"if": self.schema(depth - 1), "then": self.schema(depth - 1), "else": self.schema(depth - 1)}
        return {word: [self.schema(depth - 1) for _ in range(pick.choice([1, 2, 2, 3]))]}

    def reference(self, depth: int) -> dict[str, Any]:
        return {"$ref": self.random.choice(["#", f"#/{self.definitions}/p", f"#/{self.definitions}/q"])}

    def changed(self, schema: Any) -> Any:
        """A copy that differs in a few places."""
        found = copy.deepcopy(schema)
        for _ in range(self.random.choice([0, 1, 1, 1, 2, 3])):
            places = list(schemas_in(found))
            place = self.random.choice(places)
            self.change(place)
        return found

    def change(self, place: dict[str, Any]) -> None:
        pick = self.random
        words = [word for word in place if word not in ("$schema", "$defs", "definitions")]
        action = pick.random()
        if action < 0.3 and words:
            del place[pick.choice(words)]
        elif action < 0.5:
            place.update(pick.choice([self.scalar, self.object, self.array, self.combined])(1))
        elif action < 0.7 and isinstance(place.get("properties"), dict):
            name = pick.choice(NAMES)
            place["properties"][name] = self.property(1)
        elif action < 0.8 and isinstance(place.get("enum"), list):
            place["enum"].append(pick.choice(SCALARS))
        elif action < 0.9 and isinstance(place.get("required"), list):
            place["required"] = [pick.choice(NAMES)]
        else:
            lists = [value for value in place.values() if isinstance(value, list) and len(value) > 1]
            if lists:
                pick.shuffle(pick.choice(lists))
            if words and pick.random() < 0.5:
                kept = {word: place.pop(word) for word in words if word != "$ref"}
                place[pick.choice(["allOf", "anyOf", "oneOf"])] = [
                    kept,
                    *([self.schema(1)] if pick.random() < 0.5 else []),
                ]

    def value(self, schema: Any, root: Any, depth: int = 5) -> Any:
        """A value that often satisfies the schema."""
        pick = self.random
        if not isinstance(schema, dict) or depth <= 0 or pick.random() < 0.05:
            return self.any_value(min(depth, 2))
        if "$ref" in schema and pick.random() < 0.8:
            target = root
            for part in schema["$ref"].split("/")[1:]:
                target = target[part]
            return self.value(target, root, depth - 1)
        for word in ("allOf", "anyOf", "oneOf", "then", "else"):
            if word in schema and pick.random() < 0.6:
                inner = schema[word] if isinstance(schema[word], list) else [schema[word]]
                value = self.value(pick.choice(inner), root, depth - 1)
                return self.object_value(schema, root, depth, value) if isinstance(value, dict) else value
        if "enum" in schema or "const" in schema:
            return pick.choice(schema.get("enum", [schema.get("const")]) or [None])
        kind = schema.get("type")
        kinds = kind if isinstance(kind, list) else [kind]
        kind = pick.choice(kinds)
        if kind is None:
            kind = "object" if "properties" in schema else "array" if schema.keys() & {"items", "prefixItems"} else None
        if kind == "object":
            return self.object_value(schema, root, depth, {})
        if kind == "array":
            return self.array_value(schema, root, depth)
        return self.any_value(1, kind)

    def object_value(self, schema: dict[str, Any], root: Any, depth: int, value: dict[str, Any]) -> dict[str, Any]:
        properties = schema.get("properties", {})
        for name, inner in properties.items():
            if self.random.random() < 0.6 or name in schema.get("required", []):
                value[name] = self.value(inner, root, depth - 1)
        others = [name for name in (*NAMES, "abb") if name not in properties]
        for name in others:
            if self.random.random() < 0.12 or name in schema.get("required", []):
                rest = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties", True)]
                value[name] = self.value(self.random.choice(rest), root, depth - 1)
        return value

    def array_value(self, schema: dict[str, Any], root: Any, depth: int) -> list[Any]:
        items = schema.get("items", True)
        prefix = items if isinstance(items, list) else schema.get("prefixItems", [])
        rest = schema.get("additionalItems", True) if isinstance(items, list) else items
        size = self.random.choice([0, 1, 2, 3])
        asked = [
            *prefix[:size],
            *[schema.get("contains", rest) if self.random.random() < 0.2 else rest] * (size - len(prefix)),
        ]
        return [self.value(inner, root, depth - 1) for inner in asked]

    def any_value(self, depth: int, kind: str | None = None) -> Any:
        pick = self.random
        if kind is None and depth > 0 and pick.random() < 0.3:
            if pick.random() < 0.5:
                return [self.any_value(depth - 1) for _ in range(pick.choice([0, 1, 2]))]
            return {name: self.any_value(depth - 1) for name in pick.sample(NAMES, pick.choice([0, 1, 2]))}
        return pick.choice([value for value in SCALARS if kind is None or OF_KIND[kind](value)])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


OF_KIND: dict[str, Any] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and value == int(value),
    "number": _is_number,
    "string": lambda value: isinstance(value, str),
}


def schemas_in(schema: Any) -> Any:
    """Every object schema of a document, itself first."""
    if not isinstance(schema, dict):
        return
    yield schema
    for word, value in schema.items():
        if word in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"):
            for inner in value.values():
                yield from schemas_in(inner)
        elif word in ("allOf", "anyOf", "oneOf", "prefixItems", "items") and isinstance(value, list):
            for inner in value:
                yield from schemas_in(inner)
        elif word not in ("enum", "const", "default", "required"):
            yield from schemas_in(value)
