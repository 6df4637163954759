"""Whether one value satisfies one schema, in three answers: yes, no, and cannot tell (None).

Only for values that stand in schemas (enum, const): exact, bounded by the budget of the comparison.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .clause import Mode, View, number_fits
from .goals import MAX_DEPTH, Run
from .keywords import COUNTS
from .values import is_number, key, type_of


def evaluate(run: Run, value: Any, view: View, only: str | None = None) -> bool | None:
    """Whether `value` satisfies the schema, or only its keyword `only` (with what belongs to it)."""
    if run.depth >= MAX_DEPTH:
        return None
    run.depth += 1
    try:
        words = run.words(view)
        return _all(_word(run, value, view, words, word) for word in (words if only is None else (only,)))
    finally:
        run.depth -= 1


def _all(answers: Iterable[bool | None]) -> bool | None:
    known: bool | None = True
    for answer in answers:
        if answer is False:
            return False
        if answer is None:
            known = None
    return known


def _any(answers: Iterable[bool | None]) -> bool | None:
    known: bool | None = False
    for answer in answers:
        if answer:
            return True
        if answer is None:
            known = None
    return known


def _word(run: Run, value: Any, view: View, words: dict[str, Any], word: str) -> bool | None:
    mode, asked = view[1], words[word]
    if word == "false":
        return False
    if word == "type":
        found = type_of(value)
        return found in asked or (found == "integer" and "number" in asked)
    if word in ("enum", "const"):
        return ("open" in words and mode is Mode.READER) or key(value) in asked
    if word == "$ref":
        return evaluate(run, value, (asked, mode))
    if word == "allOf":
        return _all(evaluate(run, value, (member, mode)) for member in asked)
    if word == "anyOf":
        return _any(evaluate(run, value, (member, mode)) for member in asked)
    if word == "oneOf":
        answers = [evaluate(run, value, (member, mode)) for member in asked]
        yes, unknown = answers.count(True), answers.count(None)
        return False if yes > 1 or yes + unknown == 0 else (None if unknown else True)
    if word == "not":
        answer = evaluate(run, value, (asked, mode))
        return None if answer is None else not answer
    if word == "if":
        answer = evaluate(run, value, (asked, mode))
        branches = [words.get("then")] if answer else [words.get("else")]
        if answer is None:
            branches = [words.get("then"), words.get("else")]
        taken = _all(evaluate(run, value, (branch, mode)) for branch in branches if branch is not None)
        return taken if answer is not None or taken else None
    if word in ("$dynamicRef", "unevaluatedProperties", "unevaluatedItems"):
        return None
    if is_number(value):
        return number_fits(value, {word: asked})
    if isinstance(value, str):
        return _text(run, value, word, asked)
    if isinstance(value, list | tuple):
        return _array(run, value, view, words, word)
    if isinstance(value, dict):
        return _object(run, value, view, words, word)
    return True


def _text(run: Run, value: str, word: str, asked: Any) -> bool | None:
    if word == "minLength":
        return bool(len(value) >= asked)
    if word == "maxLength":
        return bool(len(value) <= asked)
    if word == "pattern":
        return run.matches(asked, value)
    return None if word in ("format", "contentEncoding", "contentMediaType") else True


def _counted(size: int, word: str, asked: int) -> bool:
    return size >= asked if word.startswith("min") else size <= asked


def _array(run: Run, value: Any, view: View, words: dict[str, Any], word: str) -> bool | None:
    mode, asked = view[1], words[word]
    if word in ("minItems", "maxItems"):
        return _counted(len(value), word, asked)
    if word == "uniqueItems":
        return len({key(item) for item in value}) == len(value)
    if word == "prefixItems":
        return _all(evaluate(run, item, (node, mode)) for item, node in zip(value, asked, strict=False))
    if word == "items":
        return _all(evaluate(run, item, (asked, mode)) for item in value[len(words.get("prefixItems", ())) :])
    if word == "contains":
        answers = [evaluate(run, item, (asked, mode)) for item in value]
        yes, unknown = answers.count(True), answers.count(None)
        low, high = words.get("minContains", 1), words.get("maxContains")
        if yes + unknown < low or (high is not None and yes > high):
            return False
        return True if yes >= low and (high is None or yes + unknown <= high) else None
    return True


def _object(run: Run, value: dict[str, Any], view: View, words: dict[str, Any], word: str) -> bool | None:
    mode, asked = view[1], words[word]
    if word in COUNTS:
        return _counted(len(value), word, asked) if word.endswith("Properties") else True
    if word == "required":
        return bool(asked <= value.keys())
    if word == "properties":
        return _all(evaluate(run, value[name], (node, mode)) for name, node in asked.items() if name in value)
    if word in ("patternProperties", "additionalProperties"):
        return _all(_member(run, name, item, view, words, word) for name, item in value.items())
    if word == "propertyNames":
        return _all(evaluate(run, name, (asked, mode)) for name in value)
    if word == "dependentRequired":
        return all(names <= value.keys() for name, names in asked.items() if name in value)
    if word == "dependentSchemas":
        return _all(evaluate(run, value, (node, mode)) for name, node in asked.items() if name in value)
    return True


def _member(run: Run, name: str, item: Any, view: View, words: dict[str, Any], word: str) -> bool | None:
    answers = {p: run.matches(p, name) for p in words.get("patternProperties", {})}
    if word == "patternProperties":
        found = {p: evaluate(run, item, (words[word][p], view[1])) for p, hit in answers.items() if hit is not False}
        return _all(answer if answers[p] or answer else None for p, answer in found.items())
    if name in words.get("properties", {}) or any(answers.values()):
        return True
    answer = evaluate(run, item, (words["additionalProperties"], view[1]))
    return answer if answer or None not in answers.values() else None
