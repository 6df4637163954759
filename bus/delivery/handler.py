"""Handlers: what an agent does with one message type, read from a function's signature."""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from bus.contracts.accepts import Accepts
from bus.contracts.upcast import Chain
from bus.contracts.validate import validate
from bus.contracts.version import ContractVersion, version_of
from bus.delivery.limits import NO_LIMITS, Limits
from bus.delivery.message import Message
from bus.delivery.settlement import RetryPolicy
from bus.envelope import versions
from bus.telemetry.told import instead_of as instead_of
from bus.telemetry.told import told as told
from bus.telemetry.told import told_with_trace as told_with_trace

# The type of the messages that ask for tasks (wire specification, section Tasks).
TASK_REQUEST = "tool_call_request"
UNCOUNTED = 1_000_000

HandlerFunction = Callable[..., Any]
CallNext = Callable[[Message], Awaitable[None]]
HandlerMiddleware = Callable[[Message, CallNext], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Handler:
    """One registered function. `model` is None when it takes the payload as it came.

    `version` is the contract of the model, None when nobody says; `chain`, known once the agent runs, leads to it.
    """

    message_type: str
    function: HandlerFunction
    phase: str | None
    model: type[BaseModel] | None
    takes_message: bool
    is_coroutine: bool
    limits: Limits
    retry: RetryPolicy | None
    version: ContractVersion | None = None
    chain: Chain | None = None

    @classmethod
    def of(
        cls,
        message_type: str,
        function: HandlerFunction,
        *,
        phase: str | None = None,
        limits: Limits = NO_LIMITS,
        retry: RetryPolicy | None = None,
        version: str | None = None,
    ) -> Handler:
        """Reads the signature: `(payload)` or `(payload, message)`.

        The payload's annotation may be a pydantic model, or anything else for the plain JSON value. `version`
        (`2.1`) is that of its contract, if the model does not say it itself (`version_of`). Raises TypeError, naming
        the function, when the signature does not fit, ValueError for a wrong version or two that differ.
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
        model = annotation if is_model else None
        return cls(
            message_type=message_type,
            function=function,
            phase=phase,
            model=model,
            takes_message=len(parameters) == 2,
            is_coroutine=inspect.iscoroutinefunction(function),
            limits=limits,
            retry=retry,
            version=_version(message_type, version, model),
        )

    def read(self, payload: Any, schema: str | None = None) -> Any:
        """The payload as the function wants it; `schema` is the contract that its sender names.

        Raises Rejected `tool.validation_failed`, and `protocol.unsupported_schema` for a contract that it cannot read.
        """
        if schema is not None and self.chain is not None:
            payload = self.chain.read(payload, schema)
        return payload if self.model is None else validate(payload, self.model)

    def call(self, message: Message) -> Awaitable[None]:
        """Runs the function on a message; a plain function runs in a worker thread, where it may block."""
        arguments = (message.content, message) if self.takes_message else (message.content,)
        if self.is_coroutine:
            begun: Awaitable[None] = self.function(*arguments)
            return begun
        return asyncio.to_thread(_in_thread, self.function, arguments)


def task_handler(function: HandlerFunction, policy: RetryPolicy) -> Handler:
    """The handler of an agent's tasks. `function` counts their attempts itself; the policy only says how fast."""
    return Handler.of(TASK_REQUEST, function, retry=_uncounted(policy))


def _uncounted(policy: RetryPolicy) -> RetryPolicy:
    by_code = {code: _uncounted(one) for code, one in policy.by_code.items()}
    return replace(policy, max_attempts=UNCOUNTED, max_age_s=None, by_code=by_code)


def accepted(handlers: Mapping[str, Handler]) -> Accepts:
    """What an agent with these handlers accepts."""
    majors = {type: None if one.chain is None else frozenset(one.chain.majors) for type, one in handlers.items()}
    known = {type: str(handler.version) for type, handler in handlers.items() if handler.version is not None}
    return Accepts(versions.SUPPORTED, majors, known)


def _version(type: str, said: str | None, model: type[BaseModel] | None) -> ContractVersion | None:
    of_model = version_of(model) if model is not None else None
    if of_model is not None and of_model.type != type:
        of_model = None  # A model that also serves another type; its version says nothing of this one.
    if said is None:
        return of_model
    version = ContractVersion.of_type(type, said)
    if model is not None and of_model not in (None, version):
        raise ValueError(f"the handler of {type!r} says version {said}, but {model.__qualname__} is {of_model}")
    return version


def _in_thread(function: HandlerFunction, arguments: tuple[Any, ...]) -> None:
    try:
        function(*arguments)
    except (StopIteration, GeneratorExit) as problem:
        # A future cannot carry the one, and would never end; the other would close who waits for it.
        raise RuntimeError(f"the handler raised {type(problem).__name__}") from problem
