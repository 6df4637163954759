"""Empty texts on the command line: nearly always a variable of a shell script that was not set, and never an id."""

from __future__ import annotations

from typing import Any

import typer

from bus.cli.usage import UsageError

# The embedded broker, as with the variable BUS_SERVERS.
MAY_BE_EMPTY = ("servers",)


def refuse_empty(command: Any) -> None:
    """From here on a command and its subcommands refuse arguments and options that are given as empty texts."""
    for parameter in command.params:
        if parameter.name not in MAY_BE_EMPTY:
            parameter.callback = _checked(parameter.callback)
    for one in getattr(command, "commands", {}).values():
        refuse_empty(one)


def _checked(callback: Any) -> Any:
    def check(context: typer.Context, parameter: Any, value: Any) -> Any:
        source = context.get_parameter_source(parameter.name)
        if value == "" and source is not None and source.name == "COMMANDLINE":
            name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar or parameter.name
            raise UsageError(f"{name} is empty; is a variable of your script not set?")
        return value if callback is None else callback(context, parameter, value)

    return check
