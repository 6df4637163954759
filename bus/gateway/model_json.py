"""Reading the JSON that a language model wrote: strict first, then a few common repairs, else a refusal (ENV-8).

Nothing is made up: what is cut off is left out and told, a repair that would need a value of its own is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NoReturn

from bus.calls.gate import Gate
from bus.errors import BusError, error
from bus.gateway.json_regions import Region, regions
from bus.text import plain

MAX_CHARS = 1_000_000
MAX_REPAIRED_CHARS = 200_000
MAX_DEPTH = 64
MAX_RAW_CHARS = 4000
MAX_TRIED = 8

_EMPTY_TEXT = re.compile(r"""(?<!\\)(?:""|''|“”)""")
_NOTHING = re.compile(r"\b(?:null|none|nil|undefined)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ModelJson:
    """What a model's text says. `repairs` names what was done to read it, in words, and is empty for strict JSON.

    `is_truncated`: the text ended in the middle. What was complete is there, a text value may be the beginning of one.
    """

    value: Any
    repairs: tuple[str, ...] = ()
    is_truncated: bool = False

    @property
    def is_repaired(self) -> bool:
        """Whether the text was not strict JSON."""
        return bool(self.repairs)


def read_model_json(
    text: str, schema: Mapping[str, Any] | None = None, *, max_chars: int = MAX_CHARS, max_depth: int = MAX_DEPTH
) -> ModelJson:
    """Reads a model's text as JSON, and checks it against the schema if one is given.

    Strict JSON is returned as it is. Else it looks for an object or array in code fences and in the text around it,
    and mends quotes, commas, Python's words and a truncated tail; that needs the extra `models`. Of several values
    the longest that fits is taken. Raises ToolError `model.invalid_output`: `details.raw` is the beginning of the
    text, `details.problem` says why, and `details.errors` with `details.schema` what does not fit the schema. Raises
    ValueError for a schema that is none.
    """
    gate = None if schema is None else Gate(schema, "output")
    if len(text) > max_chars:
        _refuse(text, f"it has {len(text)} characters, the limit is {max_chars}")
    try:
        return _admitted(ModelJson(strict_json(text, max_depth=max_depth)), gate, text)
    except ValueError as problem:
        # What is too deep or too large a number is JSON, and no repair is due.
        if isinstance(problem, NotBearable):
            _refuse(text, str(problem))
        why = str(problem)
    found = list(regions(text, MAX_TRIED))
    outer = sum(1 for region in found if not region.is_inner)
    refused: BusError | None = None
    for region in found:
        try:
            read = _read_region(region, max_depth, others=outer - (not region.is_inner))
            return _admitted(read, gate, text)
        except ValueError as problem:
            why = str(problem)
        except BusError as problem:
            refused = refused or problem
    if refused is not None:
        raise refused
    _refuse(text, why if found else f"there is no JSON object or array in it ({why})")


class NotBearable(ValueError):
    """JSON that is well-formed, and more than its reader takes."""


def strict_json(text: str, *, max_depth: int = MAX_DEPTH) -> Any:
    """The value of a text that is JSON (RFC 8259), whole numbers of any size kept exact.

    Raises NotBearable for what is deeper than `max_depth`, and for numbers that a float cannot hold; ValueError for
    what is not JSON, also for `NaN` and `Infinity`.
    """
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_float, parse_int=_int)
    except json.JSONDecodeError as problem:
        raise ValueError(f"{problem.msg} at character {problem.pos}") from None
    except RecursionError:
        raise NotBearable(f"it is nested deeper than {max_depth} levels") from None
    if _is_deeper(value, max_depth):
        raise NotBearable(f"it is nested deeper than {max_depth} levels")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise NotBearable(f"the number {digits[:40]} is too large")
    return value


def _int(digits: str) -> int:
    # Python itself refuses longer ones.
    if len(digits) > 4000:
        raise NotBearable(f"the number {digits[:40]}… has {len(digits)} digits")
    return int(digits)


def _is_deeper(value: Any, depth: int) -> bool:
    """Whether containers nest deeper; without recursion, because strangers write them."""
    layer = [value]
    for _ in range(depth):
        held = [one for one in layer if isinstance(one, dict | list)]
        layer = [below for one in held for below in (one.values() if isinstance(one, dict) else one)]
    return any(isinstance(one, dict | list) for one in layer)


def _read_region(region: Region, max_depth: int, *, others: int) -> ModelJson:
    """Raises ValueError that says why it cannot be read."""
    value, is_mended = _value(region, max_depth)
    repairs = {
        region.around: bool(region.around),
        "the syntax was mended": is_mended,
        "the end is missing: its last text may be cut, what else was incomplete is left out": region.is_truncated,
        "it is the longest of several values that fit": others > 0,
    }
    return ModelJson(value, tuple(name for name, applies in repairs.items() if applies), region.is_truncated)


def _value(region: Region, max_depth: int) -> tuple[Any, bool]:
    """The value, and whether its syntax had to be mended."""
    if region.depth > max_depth:
        raise NotBearable(f"it is nested deeper than {max_depth} levels")
    try:
        return strict_json(region.closed, max_depth=max_depth), False
    except NotBearable:
        raise
    except ValueError:
        pass
    if len(region.closed) > MAX_REPAIRED_CHARS:
        raise ValueError(f"it is no strict JSON, and too long to be mended ({len(region.closed)} characters)")
    value = _mended(region.closed)
    if not isinstance(value, dict | list) or _is_deeper(value, max_depth):
        raise ValueError("it cannot be mended")
    _refuse_inventions(value, region.closed)
    return value, True


def _mended(text: str) -> Any:
    try:
        return _json_repair().loads(text, skip_json_loads=True)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as problem:
        raise ValueError(f"it cannot be mended ({type(problem).__name__})") from None


def _json_repair() -> ModuleType:
    """Imported when something is to be repaired: strict readers do not need it."""
    try:
        import json_repair
    except ImportError:
        raise ImportError(
            "mending a model's JSON needs json-repair: pip install 'envelope-bus[models]'", name="json_repair"
        ) from None
    return json_repair


def _refuse_inventions(value: Any, source: str) -> None:
    """Raises ValueError where the repair put an empty text or a null that the source does not have."""
    leaves = list(_leaves(value))
    _demand(leaves, lambda leaf: leaf == "", len(_EMPTY_TEXT.findall(source)), "an empty text")
    _demand(leaves, lambda leaf: leaf is None, len(_NOTHING.findall(source)), "a null")
    if any(isinstance(leaf, float) and not math.isfinite(leaf) for leaf in leaves):
        raise ValueError("it has a number that JSON has no word for")


def _demand(leaves: list[Any], is_one: Callable[[Any], bool], in_source: int, name: str) -> None:
    if sum(1 for leaf in leaves if is_one(leaf)) > in_source:
        raise ValueError(f"it could be mended only by making up {name}")


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for name, below in value.items():
            yield name
            yield from _leaves(below)
    elif isinstance(value, list):
        for below in value:
            yield from _leaves(below)
    else:
        yield value


def _admitted(read: ModelJson, gate: Gate | None, text: str) -> ModelJson:
    if gate is not None and (problems := gate.problems(read.value)):
        told = "; ".join(f"{one['path']}: {one['problem']}" for one in problems[:5])
        _refuse(text, f"it does not fit the schema: {told}", errors=problems, schema=dict(gate.schema))
    return read


def _refuse(text: str, why: str, **details: Any) -> NoReturn:
    raise error(
        "model.invalid_output",
        f"the model's text cannot be read as JSON: {why}; let it write again",
        raw=plain(text, MAX_RAW_CHARS),
        problem=why,
        **details,
    )
