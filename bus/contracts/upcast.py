"""Upcasters and downcasters: an old payload as the newest model wants it, a new one as an old reader does (SCH-4).

Each is a pure function from dict to dict over one major: `n` to `n + 1` up, `n` to `n - 1` down. What they make is
never written back: signatures and the history keep the bytes that were sent.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from bus.contracts.version import ContractVersion
from bus.errors import error

MAX_TOLD_CHARS = 200

Payload = dict[str, Any]
Cast = Callable[[Payload], Payload]
Function = TypeVar("Function", bound=Cast)


@dataclass(frozen=True, slots=True)
class Step:
    """One function over one major of one message type."""

    type: str
    major: int
    to_major: int
    cast: Cast

    @property
    def is_up(self) -> bool:
        """Whether it is an upcaster."""
        return self.to_major > self.major

    def __str__(self) -> str:
        kind = "upcaster" if self.is_up else "downcaster"
        return f"{kind} {self.type} {self.major} to {self.to_major} ({getattr(self.cast, '__qualname__', self.cast)})"


class Contracts:
    """Upcasters and downcasters, for one agent or in a module that several share: `Agent(..., contracts=[shared])`."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: list[Step] = []

    @property
    def steps(self) -> Sequence[Step]:
        """What is registered, in the order of registration."""
        return tuple(self._steps)

    def upcast(self, type: str, major: int) -> Callable[[Function], Function]:
        """Registers the decorated function: payloads of `major` become payloads of `major + 1`.

        `def f(payload: dict) -> dict`, without input or output. It may change and return its argument, which is a
        copy. Gaps and doubles are found when the agent starts. Raises ValueError for a major below 0, TypeError for a
        coroutine function.
        """
        return self._registering(type, major, major + 1)

    def downcast(self, type: str, major: int) -> Callable[[Function], Function]:
        """Registers the decorated function: payloads of `major` become payloads of `major - 1`.

        For senders: used when no replica of the receiver accepts `major`, or not all of them do. As `upcast` otherwise.
        """
        return self._registering(type, major, major - 1)

    def _registering(self, type: str, major: int, to_major: int) -> Callable[[Function], Function]:
        if min(major, to_major) < 0:
            raise ValueError(f"{type!r} from major {major} to {to_major}: majors begin at 0")

        def register(function: Function) -> Function:
            if inspect.iscoroutinefunction(function):
                raise TypeError(f"{function.__qualname__} must be a plain def: a cast waits for nothing")
            self._steps.append(Step(type, major, to_major, function))
            return function

        return register


@dataclass(frozen=True, slots=True)
class Chain:
    """How one handler reads its message type: the version of its model, and the upcasters that lead to it."""

    version: ContractVersion
    steps: Mapping[int, Step]

    @property
    def majors(self) -> list[int]:
        """The majors that it accepts, ascending: the model's, and older ones from which the upcasters lead to it."""
        oldest = self.version.major
        while oldest - 1 in self.steps:
            oldest -= 1
        return list(range(oldest, self.version.major + 1))

    @property
    def supported(self) -> list[str]:
        """The same for `details.supported`: `draft_request@1`."""
        return [f"{self.version.type}@{major}" for major in self.majors]

    def read(self, payload: Any, received: str) -> Any:
        """A payload of the contract `received` as one of the model's major; of the model's own major, as it is.

        The given payload is not changed. Raises Rejected `protocol.unsupported_schema` (details.schema,
        details.supported) for a type or major that it does not know, and `tool.validation_failed` when an upcaster
        raises or returns no dict.
        """
        version = ContractVersion.parse(received)
        if version[:2] == self.version[:2]:
            return payload
        if version.type != self.version.type or version.major not in self.majors:
            raise error(
                "protocol.unsupported_schema",
                f"{received} cannot be read here; write one of {', '.join(self.supported)}, or send it again when the "
                "receiver is upgraded",
                schema=received,
                supported=self.supported,
            )
        return cast_along([self.steps[major] for major in range(version.major, self.version.major)], payload, received)


def cast_along(steps: Sequence[Step], payload: Any, received: str) -> Any:
    """A copy of the payload after all steps. Raises Rejected `tool.validation_failed`, which names the step."""
    payload = copy.deepcopy(payload)
    for step in steps:
        if not isinstance(payload, dict):
            raise _failed(step, received, f"it takes an object, not {_told(payload)}")
        try:
            payload = step.cast(payload)
        except BaseException as problem:
            if not isinstance(problem, KeyboardInterrupt):
                raise _failed(step, received, f"{type(problem).__name__}: {_text(problem)}") from problem
            raise
        if not isinstance(payload, dict):
            raise _failed(step, received, f"it returned {_told(payload)}, not the new payload")
    return payload


def compiled(
    versions: Mapping[str, ContractVersion | None], own: Contracts, shared: Iterable[Contracts] = ()
) -> dict[str, Chain]:
    """The chains of an agent whose handlers have these versions (None: it says none), by message type.

    `shared` contracts may have more types than the agent handles; its `own` may not. Raises ValueError with every
    problem at once: doubles, gaps, upcasters that lead past the model, of types without a version or handler.
    """
    gathered = [*own.steps, *(step for one in shared for step in one.steps)]
    problems = _doubles(gathered)
    up: dict[str, dict[int, Step]] = {}
    for step in gathered:
        if step.is_up:
            up.setdefault(step.type, {}).setdefault(step.major, step)
    for type in sorted({step.type for step in own.steps if step.is_up} - versions.keys()):
        problems.append(f"there are upcasters for {type!r}, but no handler")
    chains = {}
    for type, version in versions.items():
        steps = up.get(type, {})
        if version is None:
            if any(step.is_up and step.type == type for step in own.steps):
                problems.append(f"there are upcasters for {type!r}, but its handler says no version: on(..., version=)")
            continue
        chains[type] = Chain(version, steps)
        problems += _gaps(version, steps)
    if problems:
        raise ValueError("; ".join(problems))
    return chains


def downcasters(contracts: Iterable[Contracts]) -> dict[tuple[str, int], Step]:
    """The downcasters by type and the major that they begin at. Raises ValueError for two of the same."""
    steps = [step for one in contracts for step in one.steps if not step.is_up]
    if problems := _doubles(steps):
        raise ValueError("; ".join(problems))
    return {(step.type, step.major): step for step in steps}


def _doubles(steps: Sequence[Step]) -> list[str]:
    seen: dict[tuple[str, int, int], Step] = {}
    problems = []
    for step in steps:
        first = seen.setdefault((step.type, step.major, step.to_major), step)
        if first is not step and first.cast is not step.cast:
            problems.append(f"{first} and {step} are two for one step")
    return problems


def _gaps(version: ContractVersion, steps: Mapping[int, Step]) -> list[str]:
    problems = [
        f"{steps[major]} leads past the handler's model, which is {version}"
        for major in sorted(steps)
        if major >= version.major
    ]
    older = [major for major in steps if major < version.major]
    missing = [major for major in range(min(older, default=version.major), version.major) if major not in steps]
    if missing:
        gaps = ", ".join(f"{major} to {major + 1}" for major in missing)
        problems.append(f"the upcasters of {version.type!r} have a gap below {version}: {gaps}")
    return problems


def _failed(step: Step, received: str, why: str) -> Exception:
    return error(
        "tool.validation_failed",
        f"the payload of {received} does not pass the {step}: {why}",
        errors=[{"path": "payload", "problem": why}],
        received=received,
        step=str(step),
        repairs_left=0,
    )


def _told(value: Any) -> str:
    return "null" if value is None else f"a value of type {type(value).__name__}"


def _text(problem: BaseException) -> str:
    # Its text may raise as well, and it may say anything of any length.
    try:
        text = " ".join(str(problem).split())
    except (ValueError, TypeError, AttributeError, LookupError, RuntimeError):
        text = "its text cannot be shown"
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= MAX_TOLD_CHARS else f"{text[: MAX_TOLD_CHARS - 1]}…"
