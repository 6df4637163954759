"""The command line: `python -m agents brief "GOAL" PATH...`."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import orjson
import typer
from rich.console import Console

from agents.briefing import Brief, BriefError, Order, exit_code, make_brief
from agents.progress import counted
from agents.sources import Problem, Reading, Source, read
from agents.view import View, print_plain
from agents.words import tokens
from bus import Budget, BusError, Settings
from bus.cli.story import print_story, story_json
from schemas.brief import MAX_ROUNDS, MAX_SECTIONS

MAX_GOAL_CHARS = 1000
# Local agents have nothing of value in hand once the brief is there or given up.
LOCAL_GRACE_S = 1.0
STDOUT = "-"

app = typer.Typer(
    name="agents",
    help="Planner, writer and reviewer: an application on the bus.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _group() -> None:
    """Planner, writer and reviewer: an application on the bus."""


@app.command()
def brief(
    goal: Annotated[
        str, typer.Argument(metavar="GOAL", help="The question that the brief answers.", show_default=False)
    ] = "",
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH...", help="Markdown or text files, folders, - for standard input."),
    ] = None,
    out: Annotated[str, typer.Option("--out", help="File to write; - for standard output.")] = "brief.md",
    sections: Annotated[int, typer.Option("--sections", min=1, max=MAX_SECTIONS, help="Sections at most.")] = 4,
    rounds: Annotated[int, typer.Option("--rounds", min=0, max=MAX_ROUNDS, help="Revision rounds at most.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    servers: Annotated[
        str | None, typer.Option("--servers", help="NATS URLs; default: BUS_SERVERS, else the embedded broker.")
    ] = None,
    remote: Annotated[
        bool, typer.Option("--remote/--local", help="Use only agents that run elsewhere, or run them here too.")
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, max=86400, help="Seconds without any progress before giving up.")
    ] = 300.0,
    resume: Annotated[
        str | None,
        typer.Option("--resume", metavar="WORKFLOW_ID", help="Go on with a brief whose command was killed."),
    ] = None,
    budget_messages: Annotated[
        int | None, typer.Option("--budget-messages", min=1, help="Messages at most, of all agents together.")
    ] = None,
    budget_seconds: Annotated[
        float | None, typer.Option("--budget-seconds", min=0.1, help="Seconds at most, from the beginning.")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show logs and tracebacks.")] = False,
) -> None:
    """Have three agents write a brief that answers GOAL from documents, every sentence with its [file:line].

    Example: python -m agents brief "How are messages kept safe?" README.md docs --out brief.md
    """
    _set_up_logging(debug=debug)
    report = _Report(as_json=as_json, to_stderr=as_json or out == STDOUT)
    budget = None
    if budget_messages is not None or budget_seconds is not None:
        budget = Budget(messages=budget_messages, timeout_s=budget_seconds)
    if resume is None:
        reading = _read(goal, paths or [], out, report)
    elif goal or paths or budget is not None:
        report.fail("wrong_use", "--resume goes on with the goal, the sources and the budget that the brief has", 2)
    else:
        _target(out, report)
        reading = Reading((), ())
    order = Order(goal.strip(), reading.sources, sections, rounds, remote, timeout, budget, resume)
    settings = Settings.load(servers=servers, grace_s=None if remote else LOCAL_GRACE_S)
    started = time.monotonic()
    try:
        with View(report.console, quiet=as_json) as view:
            made = asyncio.run(make_brief(order, settings, view.see))
    except (BriefError, BusError) as problem:
        code = problem.code if isinstance(problem, BriefError) else problem.info.code
        report.fail(code, str(problem), exit_code(problem), reading.problems)
    elapsed_ms = (time.monotonic() - started) * 1000
    _write(out, made.content, report)
    report.finish(made, out, reading, elapsed_ms)


class _Report:
    """What is printed, apart from the live view: lines for a person, or one JSON object."""

    def __init__(self, *, as_json: bool, to_stderr: bool) -> None:
        self._as_json = as_json
        self.console = Console(stderr=to_stderr)

    def problem(self, problem: Problem) -> None:
        """A source that is left out."""
        print(f"skipped {problem.message}", file=sys.stderr)

    def fail(self, code: str, message: str, status: int, skipped: Sequence[Problem] = ()) -> NoReturn:
        """Says why there is no brief, and exits."""
        print(f"error: {message}", file=sys.stderr)
        if self._as_json:
            error = {"code": code, "message": message}
            self._print_json({"ok": False, "error": error, "skipped": _skipped(skipped)})
        raise typer.Exit(status)

    def finish(self, made: Brief, out: str, reading: Reading, elapsed_ms: float) -> None:
        """The story of the workflow's messages, then where the brief is."""
        if self._as_json:
            self._print_json(_summary(made, out, reading, elapsed_ms))
            return
        print_plain(self.console, "")
        print_story(made.story, self.console)
        print_plain(self.console, "")
        sentences = sum(section.sentences for section in made.ready.sections)
        counts = ((len(made.ready.sections), "section"), (sentences, "sentence"), (len(made.sources), "source"))
        what = ", ".join(counted(count, noun) for count, noun in counts)
        where = "standard output" if out == STDOUT else out
        print_plain(self.console, f"brief: {where} ({what}, {elapsed_ms / 1000:.1f} s)")

    def _print_json(self, value: dict[str, Any]) -> None:
        sys.stdout.buffer.write(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        sys.stdout.flush()


def _read(goal: str, paths: Sequence[str], out: str, report: _Report) -> Reading:
    """The sources, or exit: 2 for wrong use, 1 when none is readable."""
    if not tokens(goal) or len(goal) > MAX_GOAL_CHARS:
        report.fail("wrong_use", f"GOAL must be up to {MAX_GOAL_CHARS} characters with a word to look for", 2)
    if not paths:
        report.fail("wrong_use", "name at least one PATH to read, or --resume WORKFLOW_ID", 2)
    target = _target(out, report)
    reading = read(paths, stdin=sys.stdin.buffer, leave_out=target)
    for problem in reading.problems:
        report.problem(problem)
    if target is not None and any(_is_same(source, target) for source in reading.sources):
        report.fail("wrong_use", f"--out {out} is one of the sources and would be overwritten", 2)
    if not reading.sources:
        report.fail("no_sources", "none of the sources can be read; see above", 1, reading.problems)
    return reading


def _target(out: str, report: _Report) -> Path | None:
    target = None if out == STDOUT else Path(out)
    if target is not None and (target.is_dir() or not target.parent.is_dir()):
        report.fail("wrong_use", f"--out {out}: not a file in a folder that exists", 2)
    return target


def _is_same(source: Source, target: Path) -> bool:
    try:
        return Path(source.name).samefile(target)
    except OSError:
        return False


def _write(out: str, content: bytes, report: _Report) -> None:
    """Writes the brief whole or not at all; into a pipe or a device as it comes."""
    if out == STDOUT:
        sys.stdout.buffer.write(content)
        sys.stdout.flush()
        return
    target = Path(out).resolve()
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(content)
            return
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
            file.write(content)
        umask = os.umask(0)
        os.umask(umask)
        Path(file.name).chmod(0o666 & ~umask)
        Path(file.name).replace(target)
    except OSError as error:
        report.fail("not_written", f"--out {out}: {error.strerror or error}", 1)


def _summary(made: Brief, out: str, reading: Reading, elapsed_ms: float) -> dict[str, Any]:
    artifact = made.ready.artifact
    return {
        "ok": True,
        "goal": made.ready.goal,
        "workflow_id": made.workflow_id,
        "brief": {
            "path": None if out == STDOUT else out,
            "sha256": artifact.sha256,
            "size_bytes": artifact.size_bytes,
        },
        "sections": [section.model_dump(mode="json") for section in made.ready.sections],
        "sources": list(made.sources),
        "skipped": _skipped(reading.problems),
        "elapsed_ms": round(elapsed_ms, 1),
        "story": story_json(made.story),
    }


def _skipped(problems: Sequence[Problem]) -> list[dict[str, str]]:
    return [{"path": p.path, "code": p.code.value, "message": p.message} for p in problems]


def _set_up_logging(*, debug: bool) -> None:
    if debug:
        os.environ["BUS_DEBUG"] = "1"
        logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    else:
        # Whatever matters reaches the user as a line of this command; logs would tear the live view.
        logging.getLogger("bus").addHandler(logging.NullHandler())
