"""Capabilities: functions that others may call, read from their signature (REG-1)."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import typing
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError, create_model
from pydantic_core import PydanticSerializationError, to_jsonable_python

from bus.calls.call import Call
from bus.calls.card import Card
from bus.calls.coercion import Defaults, coerce
from bus.calls.gate import Gate, Problem
from bus.errors import error

Function = Callable[..., Any]

STREAMS = (AsyncIterator, AsyncIterable, AsyncGenerator)


class Capability:
    """One registered function, its card and its two gates.

    The function takes one model (pydantic, dataclass, TypedDict), or a `dict`, or plain named parameters; beside them
    a parameter of the type `Call`, if it wants. A plain `def` runs in a worker thread; an `async def` that yields
    streams, and its annotation `AsyncIterator[Item]` gives the schema of one item. Raises RegistryError
    `registry.invalid_card`, with every reason at once, and TypeError for a signature that does not fit.
    """

    __slots__ = ("_arguments", "_as_names", "_call_name", "_defaults", "_function", "_is_coroutine", "_is_generator",
                 "_lenient",
                 "_output", "_result_gate", "card", "gate", "takes_call")  # fmt: skip

    def __init__(self, name: str, function: Function, *, lenient: bool, fields: Mapping[str, Any]) -> None:
        given = {key: value for key, value in fields.items() if value is not None}
        self._function = function
        self._is_coroutine = inspect.iscoroutinefunction(function)
        self._is_generator = inspect.isasyncgenfunction(function)
        self._lenient = lenient
        self._as_names = False
        self._arguments, self._output = self._read_signature(function, given)
        if "input_schema" not in given:
            given["input_schema"] = _schema(self._arguments, "validation")
        if "output_schema" not in given and self._output is not None:
            given["output_schema"] = _schema(self._output, "serialization")
        description = given.get("description") or inspect.getdoc(function) or ""
        self.card = Card.checked({**given, "name": name, "description": description, "streaming": self._is_generator})
        self.gate = Gate(self.card.input_schema, "arguments")
        self._defaults = Defaults(self.card.input_schema)
        schema = self.card.output_schema
        self._result_gate = None if schema is None else Gate(schema, "result")

    def _read_signature(self, function: Function, given: Mapping[str, Any]) -> tuple[Any, Any]:
        name = getattr(function, "__qualname__", repr(function))
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except NameError as problem:
            raise TypeError(f"{name}: {problem}; annotate with names that the module knows") from problem
        parameters = dict(inspect.signature(function).parameters)
        calls = [one for one in parameters if hints.get(one) is Call]
        self._call_name = calls[0] if calls else None
        self.takes_call = bool(calls)
        for taken in calls:
            del parameters[taken]
        for one in parameters.values():
            if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
                raise TypeError(f"{name}: {one} has no name that a caller could give; use plain named parameters")
        output = self._output_of(hints.get("return", Any), function, name)
        adapter = None if output in (Any, type(None), object) else _adapter(output, f"{name} returns")
        if len(parameters) == 1:
            (only,) = parameters
            annotation = hints.get(only, Any)
            origin = typing.get_origin(annotation) or annotation
            if inspect.isclass(origin) and issubclass(origin, Mapping) and not typing.is_typeddict(origin):
                return (None if "input_schema" in given else _adapter(annotation, name)), adapter
            if _is_model(annotation):
                return _adapter(annotation, name), adapter
            if "input_schema" in given and annotation is Any:
                return None, adapter
        self._as_names = True
        fields: dict[str, Any] = {
            one.name: (hints.get(one.name, Any), ... if one.default is one.empty else one.default)
            for one in parameters.values()
        }
        try:
            model = create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
        except (PydanticSchemaGenerationError, NameError) as problem:
            raise TypeError(f"{name}: {str(problem).partition(chr(10))[0]}") from problem
        return _adapter(model, name), adapter

    def _output_of(self, annotation: Any, function: Function, name: str) -> Any:
        """What it returns, or of a generator what it yields."""
        if inspect.isgeneratorfunction(function):
            raise TypeError(f"{name} yields in a plain def; make it an async def, and it streams")
        is_stream = (typing.get_origin(annotation) or annotation) in STREAMS
        if is_stream and not self._is_generator:
            raise TypeError(f"{name} is annotated as a stream and never yields; yield its items")
        if not self._is_generator:
            return annotation
        if not is_stream and annotation is not Any:
            raise TypeError(f"{name} yields; annotate what it yields, as AsyncIterator[Item]")
        return (*typing.get_args(annotation), Any)[0]

    def admit(self, arguments: Any) -> tuple[Any, list[str]]:
        """Gate 1: the arguments as the function takes them, and what was coerced.

        Raises Rejected `tool.validation_failed` whose `details.errors` name every path; the rest of its details is
        the responder's to fill in.
        """
        coerced: list[str] = []
        if not self.gate.is_valid(arguments):
            problems = self.gate.problems(arguments)
            if self._lenient and isinstance(arguments, dict):
                arguments, coerced = coerce(self.gate, arguments)
                problems = self.gate.problems(arguments)
            if problems:
                raise refused(self.card.name, problems)
        if self._arguments is None:
            return (self._defaults.fill(arguments) if isinstance(arguments, dict) else arguments), coerced
        try:
            return self._arguments.validator.validate_python(arguments), coerced
        except ValidationError as failed:
            # What a schema cannot say: the validators of the model.
            found = failed.errors(include_url=False, include_context=False, include_input=False)
            raise refused(
                self.card.name,
                [{"path": ".".join(["arguments", *map(str, one["loc"])]), "problem": one["msg"]} for one in found[:50]],
            ) from None

    def run(self, admitted: Any, call: Call | None) -> Awaitable[Any]:
        """Runs the function on what `admit` let pass; what it raises is raised. `call` where it takes one."""
        # No coroutine of our own around the user's: it would cost as much as many a function.
        if not self._as_names and self._is_coroutine and self._call_name is None:
            running: Awaitable[Any] = self._function(admitted)
            return running
        arguments, named = self._bound(admitted, call)
        if self._is_coroutine:
            running = self._function(*arguments, **named)
            return running
        return asyncio.to_thread(_in_thread, self._function, arguments, named)

    def items(self, admitted: Any, call: Call | None) -> AsyncGenerator[Any, None]:
        """What a streaming one yields; whoever iterates closes it."""
        arguments, named = self._bound(admitted, call)
        items: AsyncGenerator[Any, None] = self._function(*arguments, **named)
        return items

    def _bound(self, admitted: Any, call: Call | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        named: dict[str, Any] = {} if self._call_name is None else {self._call_name: call}
        if self._as_names:
            if isinstance(admitted, BaseModel):
                named.update((name, getattr(admitted, name)) for name in type(admitted).model_fields)
            else:
                named.update(admitted)
            return (), named
        return (admitted,), named

    def release(self, returned: Any) -> Any:
        """Gate 2: what the function returned, as JSON values. Raises ToolError `tool.invalid_result`."""
        try:
            if self._output is None:
                data = to_jsonable_python(returned)
            else:
                data = self._output.serializer.to_python(returned, mode="json", by_alias=True, warnings="none")
        except (PydanticSerializationError, ValueError, RecursionError) as problem:
            raise _invalid_result(self.card.name, [{"path": "result", "problem": str(problem)[:300]}]) from None
        if self._result_gate is not None and not self._result_gate.is_valid(data):
            raise _invalid_result(self.card.name, self._result_gate.problems(data))
        return data


def refused(name: str, problems: list[Problem]) -> Exception:
    """The refusal of arguments."""
    told = "; ".join(f"{one['path']}: {one['problem']}" for one in problems[:5])
    more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
    return error("tool.validation_failed", f"the arguments of {name} are wrong: {told}{more}", errors=problems)


def _invalid_result(name: str, problems: list[Problem]) -> Exception:
    told = "; ".join(f"{one['path']}: {one['problem']}" for one in problems[:3])
    return error("tool.invalid_result", f"{name} gave a result that its card does not promise: {told}", errors=problems)


def _in_thread(function: Function, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    try:
        return function(*arguments, **named)
    except StopIteration as problem:
        # A future cannot carry it, and would never end.
        raise RuntimeError("the capability raised StopIteration") from problem


def _is_model(annotation: Any) -> bool:
    origin = typing.get_origin(annotation) or annotation
    return inspect.isclass(origin) and (
        issubclass(origin, BaseModel) or dataclasses.is_dataclass(origin) or typing.is_typeddict(origin)
    )


def _adapter(annotation: Any, name: str) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation)
    except PydanticSchemaGenerationError as problem:
        raise TypeError(f"{name}: {str(problem).partition(chr(10))[0]}; annotate with what JSON can say") from problem


def _schema(adapter: TypeAdapter[Any] | None, mode: typing.Literal["validation", "serialization"]) -> dict[str, Any]:
    return {"type": "object"} if adapter is None else adapter.json_schema(mode=mode)
