"""Tools that a team has already, with their functions, as capabilities of an agent (TOOL-4, REG-11)."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bus.agent import Agent
from bus.calls.card import is_capability_name
from bus.errors import BusError
from bus.gateway.tool_call import as_object

Function = Callable[..., Any]

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_OTHER = re.compile(r"[^a-z0-9_]+")


def adopt_tools(
    agent: Agent,
    definitions: Iterable[Mapping[str, Any]],
    functions: Mapping[str, Function],
    *,
    prefix: str | None = None,
    **options: Any,
) -> dict[str, str]:
    """Registers tools that are defined as OpenAI or Anthropic want it; returns the capability of each tool's name.

    `functions` are the functions by tool name; one that takes a single `dict` gets the arguments as that, another
    gets them by name. `getWeather` becomes `<prefix>.get_weather`, with the agent's name unless there is a prefix, and
    names that `tool_name` has made become what they were. `options` are those of `Agent.capability`, for all of them.
    Raises ValueError with everything that is wrong at once, and registers nothing then.
    """
    prefix = _word(agent.name) if prefix is None else prefix
    names: dict[str, str] = {}
    problems: list[str] = []
    trial = Agent(agent.name)
    found: list[tuple[str, Function, dict[str, Any]]] = []
    for place, definition in enumerate(definitions):
        tool, description, schema = _parts(definition)
        where = tool or f"definition {place}"
        if not tool or not isinstance(schema, Mapping):
            problems.append(f"{where}: has no name or no schema; is it a tool that the provider runs itself?")
            continue
        if tool not in functions:
            problems.append(f"{where}: there is no function for it")
            continue
        capability = _capability(tool, prefix)
        if capability in (*names.values(), *agent.capabilities):
            problems.append(f"{where}: there is already a capability {capability}")
            continue
        fields = {"description": description, "input_schema": dict(schema), **options}
        wrapped = _by_name(functions[tool])
        try:
            trial.capability(capability, **fields)(wrapped)
        except (BusError, TypeError, ValueError) as problem:
            problems.append(f"{where}: {problem}")
            continue
        names[tool] = capability
        found.append((capability, wrapped, fields))
    problems += [f"{name}: there is no definition for it" for name in sorted(functions.keys() - names.keys())
                 if not any(problem.startswith(f"{name}:") for problem in problems)]  # fmt: skip
    if problems:
        raise ValueError(f"the tools are not adopted: {'; '.join(problems)}")
    for capability, wrapped, fields in found:
        agent.capability(capability, **fields)(wrapped)
    return names


def _parts(definition: Mapping[str, Any]) -> tuple[str, str | None, Any]:
    """Name, description and schema, in any of the three shapes."""
    body = as_object(definition.get("function")) or definition
    name, description = body.get("name"), body.get("description")
    schema = body.get("parameters", body.get("input_schema"))
    if schema is None and definition.get("type") == "function" and name:
        schema = {"type": "object", "properties": {}}  # how OpenAI writes a function that takes nothing
    return (
        name if isinstance(name, str) else "",
        description if isinstance(description, str) and description.strip() else None,
        schema,
    )


def _capability(tool: str, prefix: str) -> str:
    back = tool.replace("-", ".")
    if "--" not in tool and is_capability_name(back):
        return back
    return f"{prefix}.{_word(tool)}"


def _word(name: str) -> str:
    word = _OTHER.sub("_", _HUMP.sub("_", name).lower()).strip("_")
    return word if word[:1].isalpha() else f"t_{word}"


def _by_name(function: Function) -> Function:
    """The function as one that takes its arguments as a dict."""
    takes_dict = _takes_dict(function)

    async def awaited(arguments: dict[str, Any]) -> Any:
        return await (function(arguments) if takes_dict else function(**arguments))

    def returned(arguments: dict[str, Any]) -> Any:
        return function(arguments) if takes_dict else function(**arguments)

    run: Function = awaited if inspect.iscoroutinefunction(function) else returned
    run.__doc__ = inspect.getdoc(function)
    return run


def _takes_dict(function: Function) -> bool:
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) != 1 or parameters[0].kind is inspect.Parameter.VAR_KEYWORD:
        return False
    try:
        annotation = typing.get_type_hints(function).get(parameters[0].name)
    except NameError:
        return False
    origin = typing.get_origin(annotation) or annotation
    return inspect.isclass(origin) and issubclass(origin, Mapping)
