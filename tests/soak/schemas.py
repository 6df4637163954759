"""`python -m tests.soak.schemas`: hunt for a "compatible" pair of schemas with a value that the reader refuses.

Pairs are made by changing a random schema in one to three places; values come from both schemas and from changes of
them. A validator that is not ours judges. SCH-2: none may be found in 10,000 tries. Prints the seed of what it finds.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from typing import Any

import jsonschema_rs

from bus.contracts.compare import compare
from tests.soak.schema_source import DRAFTS, Source, schemas_in

Judge = jsonschema_rs.Draft202012Validator | jsonschema_rs.Draft7Validator

CLOSED = frozenset({"unevaluatedProperties", "additionalProperties"})
BRANCHES = ("allOf", "anyOf", "oneOf")


def writer_of(document: Any) -> Any:
    """What our writers send, as a document of its own (2020-12): closed where nothing is said, defaults written.

    Made from the rule with `unevaluatedProperties`, which the engine does not use: an independent second way. A value
    must satisfy the document itself too. Definitions are not closed in themselves, but where they are used.
    """
    found = _written(document, document, in_place=False)
    found["$defs"] = {name: _written(inner, document, in_place=True) for name, inner in document["$defs"].items()}
    return found


def _written(schema: Any, root: Any, *, in_place: bool) -> Any:
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for word, value in schema.items():
        if word in ("properties", "patternProperties"):
            found[word] = {name: _written(inner, root, in_place=False) for name, inner in value.items()}
        elif word in ("items", "additionalProperties"):
            found[word] = _written(value, root, in_place=False)
        elif word == "prefixItems":
            found[word] = [_written(inner, root, in_place=False) for inner in value]
        elif word in BRANCHES:
            found[word] = [_written(inner, root, in_place=True) for inner in value]
        else:
            found[word] = value
    names = [
        name for name, inner in schema.get("properties", {}).items() if isinstance(inner, dict) and "default" in inner
    ]
    if names:
        found["required"] = sorted({*schema.get("required", []), *names})
    if not in_place and not CLOSED & schema.keys():
        declares, required = _declares(schema, root, set())
        if declares:  # what is required is as good as declared
            found = {"allOf": [found, {"properties": dict.fromkeys(required, True)}], "unevaluatedProperties": False}
    return found


def _declares(schema: Any, root: Any, seen: set[int]) -> tuple[bool, set[str]]:
    """Whether the schemas that apply to the same value declare properties, and what they require."""
    if not isinstance(schema, dict) or id(schema) in seen:
        return False, set()
    seen.add(id(schema))
    found = "properties" in schema
    required = set(schema.get("required", []))
    inner = [branch for word in BRANCHES for branch in schema.get(word, [])]
    if "$ref" in schema:
        target = root
        for part in schema["$ref"].split("/")[1:]:
            target = target[part]
        inner.append(target)
    for branch in inner:
        declares, more = _declares(branch, root, seen)
        found |= declares
        required |= more
    return found, required


def judge(schema: Any, draft: str) -> Judge:
    """The validator that is not ours; formats are asserted, as our mode means them."""
    kind = jsonschema_rs.Draft202012Validator if draft == "2020-12" else jsonschema_rs.Draft7Validator
    return kind(schema, validate_formats=True)


class Hunt:
    """Tries, and what they came to."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def attempt(self, seed: int, values: int = 40) -> str:
        """One pair, both directions, schema against schema and writer against reader. What was found, or nothing."""
        pick = random.Random(seed)
        draft = pick.choice(list(DRAFTS))
        source = Source(pick, draft)
        old = source.document()
        new = source.changed(old) if pick.random() < 0.9 else source.document()
        try:
            judges = judge(old, draft), judge(new, draft)
        except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError):
            self.counts["refused by the validator"] += 1
            return ""
        return self._directions(source, old, new, judges, values)

    def _directions(self, source: Source, old: Any, new: Any, judges: tuple[Judge, Judge], values: int) -> str:
        answers = {mode: compare(old, new, mode=mode) for mode in ("backward", "forward")}
        kinds = {
            change.kind for verdict in answers.values() for change in verdict.changes if change.severity == "error"
        }
        self.counts["cannot tell"] += "cannot_tell" in kinds
        for mode, verdict in answers.items():
            self.counts[f"{mode} {'compatible' if verdict.compatible else 'breaking'}"] += 1
            if not verdict.compatible:
                continue
            writer, reader = (old, new) if mode == "backward" else (new, old)
            of_writer, of_reader = judges if mode == "backward" else judges[::-1]
            if source.draft == "2020-12":
                tight = judge(writer_of(writer), source.draft)
            elif any("properties" in schema and "additionalProperties" not in schema for schema in schemas_in(writer)):
                self.counts["draft-07 writer not expressed"] += 1
                continue
            else:
                tight = of_writer
            for _ in range(values):
                value = source.value(source.random.choice([writer, writer, reader]), writer)
                try:
                    sent = of_writer.is_valid(value) and tight.is_valid(value)
                    if sent and not of_reader.is_valid(value):
                        return json.dumps({"mode": mode, "old": old, "new": new, "value": value})
                except (ValueError, RecursionError):
                    self.counts["not judged"] += 1
                    continue
                self.counts["values sent"] += sent
        return ""


def main(arguments: list[str]) -> int:
    """Run; 1 when a counterexample was found."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.schemas", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--tries", type=int, default=10_000, help="pairs of schemas")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first pair; each pair takes the next")
    options = parser.parse_args(arguments)
    hunt = Hunt()
    started = time.monotonic()
    found = 0
    for seed in range(options.seed, options.seed + options.tries):
        counterexample = hunt.attempt(seed)
        if counterexample:
            found += 1
            print(f"seed {seed}: {counterexample}")
    print(f"{options.tries} pairs in {time.monotonic() - started:.0f} s, {found} counterexamples")
    for name, count in sorted(hunt.counts.items()):
        print(f"  {name:28} {count:,}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
