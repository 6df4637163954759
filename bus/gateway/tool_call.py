"""One tool call of a model, as the provider's response has it (TOOL-4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from bus.errors import BusError, ErrorInfo, error
from bus.gateway.model_json import strict_json
from bus.gateway.toolbox import Toolbox, ToolDefinitions

MAX_ARGUMENT_CHARS = 1_000_000


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What a model asks for. `id` pairs it with its answer; `problem` says why it cannot be read, and is None else."""

    id: str
    name: str
    arguments: Any = None
    problem: ErrorInfo | None = None
    is_custom: bool = False

    @classmethod
    def read(cls, id: object, name: object, arguments: object, *, is_custom: bool = False, hint: str = "") -> ToolCall:
        """Reads a call; arguments that are a string are parsed, once and strictly, and nothing else is ever done.

        `hint` is what may explain arguments that are no JSON, in words.
        """
        problem = None
        value: Any = None
        try:
            value = _arguments(arguments, hint) if not is_custom else None
        except BusError as refused:
            problem = refused.info
        return cls(as_text(id), as_text(name), value, problem, is_custom)


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What a model is told about one of its calls."""

    call: ToolCall
    text: str
    is_error: bool


class Provider(Protocol):
    """How one provider writes tools, calls and answers."""

    def definitions(self, tools: Toolbox, *, strict: bool) -> ToolDefinitions:
        """The tools as it takes them."""
        ...

    def reads(self, response: Mapping[str, Any]) -> bool:
        """Whether a response is one of its own."""
        ...

    def calls(self, response: Mapping[str, Any]) -> list[ToolCall]:
        """The calls in it, in its order."""
        ...

    def messages(self, answers: list[ToolAnswer]) -> list[dict[str, Any]]:
        """The messages that answer them, each once."""
        ...


def _arguments(written: object, hint: str) -> dict[str, Any]:
    if written is None or written == "":
        return {}  # how models call what takes nothing
    value: object = written
    if isinstance(written, str):
        if len(written) > MAX_ARGUMENT_CHARS:
            raise _wrong(f"have {len(written)} characters, the limit is {MAX_ARGUMENT_CHARS}")
        try:
            value = strict_json(written)
        except ValueError as problem:
            raise _wrong(f"are not JSON: {problem}{hint}") from None
    if not isinstance(value, dict):
        raise _wrong("are not a JSON object")
    try:
        orjson.dumps(value)
    except (TypeError, ValueError, RecursionError) as problem:
        raise _wrong(f"cannot travel: {problem}") from None
    return value


def _wrong(problem: str) -> BusError:
    return error(
        "tool.validation_failed",
        f"the arguments {problem}",
        errors=[{"path": "arguments", "problem": problem}],
        instruction=f"The tool did not run, because its arguments {problem}. Call it again with one JSON object.",
        started=False,
    )


def as_object(value: object) -> Mapping[str, Any]:
    """A member of a response that should be an object; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def as_objects(value: object) -> list[Mapping[str, Any]]:
    """A member of a response that should be a list of objects; what is none becomes an empty one."""
    return [as_object(one) for one in value] if isinstance(value, list) else []


def as_text(value: object) -> str:
    """A member of a response that should be a text; an empty one for anything else."""
    return value if isinstance(value, str) else ""
