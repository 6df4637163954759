"""The command `bus`: its commands, and the edge where every error becomes one line and an exit code."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from typing import Annotated

import typer

from bus.cli import (
    audit,
    bench,
    call,
    chaos,
    dead,
    inspect,
    operate,
    published,
    replay,
    rules,
    schema,
    task,
    trace,
    workflow,
)
from bus.cli.empty import refuse_empty
from bus.cli.usage import UsageError
from bus.config import SettingsError, misspelt_variables
from bus.delivery.letter import NoSuchDeadLetter
from bus.errors import BusError, Rejected
from bus.text import clean

EXIT_NO, EXIT_WRONG_USE, EXIT_NO_BROKER, EXIT_INTERRUPTED = 1, 2, 3, 130

app = typer.Typer(
    name="bus",
    help="A message bus for teams of agents, on NATS.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("up")(operate.up)
app.command("run")(operate.run)
app.command("send")(operate.send)
app.command("call")(call.call)
app.add_typer(call.registry_app, name="registry")
app.add_typer(task.task_app, name="task")
app.command("audit")(audit.audit)
app.add_typer(rules.rules_app, name="rules")
app.command("tail")(inspect.tail)
app.command("trace")(trace.trace)
app.add_typer(workflow.workflow_app, name="workflow")
workflow.workflow_app.command("replay")(replay.replay_workflow)
app.add_typer(dead.dead_app, name="dead")
app.add_typer(schema.schema_app, name="schema")
schema.schema_app.command("publish")(published.publish)
schema.schema_app.command("impact")(published.impact_command)
app.command("doctor")(inspect.doctor)
app.command("chaos")(chaos.chaos)
app.command("bench")(bench.bench)


def _version(wanted: bool) -> None:
    if wanted:
        try:
            print(f"envelope-bus {metadata.version('envelope-bus')}")
        except metadata.PackageNotFoundError:
            print("envelope-bus, from a folder that is not installed")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """A message bus for teams of agents, on NATS."""
    if debug:
        os.environ["BUS_DEBUG"] = "1"
    for warning in misspelt_variables(os.environ):
        print(f"warning: {clean(warning)}", file=sys.stderr)


def main() -> None:
    """Runs the command line and turns errors into one line each.

    Exit codes: 0 good, 1 the answer is no or failed, 2 wrong use, 3 the broker cannot be reached.
    """
    run_edge(app)


def run_edge(application: typer.Typer) -> None:
    """Runs a typer application with the exit codes and error lines that all our commands share."""
    try:
        command = typer.main.get_command(application)
        refuse_empty(command)
        command()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output went away; a second failure at interpreter exit would print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as problem:
        if os.environ.get("BUS_DEBUG"):
            raise
        line, code = describe(problem)
        print(f"error: {line}", file=sys.stderr)
        sys.exit(code)


def describe(problem: Exception) -> tuple[str, int]:
    """The line and the exit code for an error."""
    if isinstance(problem, NoSuchDeadLetter):
        return str(problem), EXIT_NO
    if isinstance(problem, Rejected):
        return problem.info.message, EXIT_WRONG_USE
    if isinstance(problem, BusError):
        unreachable = problem.info.code == "broker.unavailable"
        return problem.info.message, EXIT_NO_BROKER if unreachable else EXIT_NO
    if isinstance(problem, SettingsError | UsageError) or type(problem) is ValueError:
        # The library says wrong arguments with ValueError itself; its subclasses are somebody's bugs.
        return str(problem), EXIT_WRONG_USE
    return f"{type(problem).__name__}: {problem} (run again with --debug to see where)", EXIT_NO
