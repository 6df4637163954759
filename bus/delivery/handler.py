"""Handlers: what an agent does with one message type, read from a function's signature."""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from bus.contracts.validate import validate
from bus.delivery.limits import NO_LIMITS, Limits
from bus.delivery.message import Message
from bus.delivery.settlement import RetryPolicy
from bus.telemetry.told import contained as contained
from bus.telemetry.told import told as told
from bus.telemetry.told import told_with_trace as told_with_trace

HandlerFunction = Callable[..., Any]
CallNext = Callable[[Message], Awaitable[None]]
HandlerMiddleware = Callable[[Message, CallNext], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Handler:
    """One registered function. `model` is None when it takes the payload as it came."""

    message_type: str
    function: HandlerFunction
    phase: str | None
    model: type[BaseModel] | None
    takes_message: bool
    is_coroutine: bool
    limits: Limits
    retry: RetryPolicy | None

    @classmethod
    def of(
        cls,
        message_type: str,
        function: HandlerFunction,
        *,
        phase: str | None = None,
        limits: Limits = NO_LIMITS,
        retry: RetryPolicy | None = None,
    ) -> Handler:
        """Reads the signature: `(payload)` or `(payload, message)`.

        The payload's annotation may be a pydantic model, or anything else for the plain JSON value.
        Raises TypeError, naming the function, when the signature does not fit.
        """
        name = getattr(function, "__qualname__", repr(function))
        parameters = [
            parameter
            for parameter in inspect.signature(function).parameters.values()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        if not 1 <= len(parameters) <= 2:
            raise TypeError(f"{name} must take (payload) or (payload, message), it takes {len(parameters)} parameters")
        try:
            annotation = typing.get_type_hints(function).get(parameters[0].name)
        except NameError as problem:
            raise TypeError(f"{name}: {problem}; annotate with names that the module knows") from problem
        is_model = inspect.isclass(annotation) and issubclass(annotation, BaseModel)
        return cls(
            message_type=message_type,
            function=function,
            phase=phase,
            model=annotation if is_model else None,
            takes_message=len(parameters) == 2,
            is_coroutine=inspect.iscoroutinefunction(function),
            limits=limits,
            retry=retry,
        )

    def read(self, payload: Any) -> Any:
        """The payload as the function wants it. Raises Rejected `tool.validation_failed`."""
        return payload if self.model is None else validate(payload, self.model)

    async def call(self, message: Message) -> None:
        """Runs the function on a message; a plain function runs in a worker thread, where it may block."""
        arguments = (message.content, message) if self.takes_message else (message.content,)
        if self.is_coroutine:
            await self.function(*arguments)
        else:
            await asyncio.to_thread(_in_thread, self.function, arguments)


def _in_thread(function: HandlerFunction, arguments: tuple[Any, ...]) -> None:
    try:
        function(*arguments)
    except (StopIteration, GeneratorExit) as problem:
        # A future cannot carry the one, and would never end; the other would close who waits for it.
        raise RuntimeError(f"the handler raised {type(problem).__name__}") from problem
