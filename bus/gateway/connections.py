"""The TOML file that puts HTTP services and programs on the bus, read whole before anything runs (REG-11).

Every mistake is told at once, each with its place.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bus.agent import Agent
from bus.calls.card import MAX_TIMEOUT_S
from bus.envelope import is_agent_name
from bus.errors import RegistryError
from bus.gateway.connected import ConnectedAgent
from bus.gateway.connector import Connector, Wrapped
from bus.gateway.http_service import DEFAULT_MAX_BYTES, HttpRequest, HttpService
from bus.gateway.json_lines import CANCEL_GRACE_S, JsonLines, Program
from bus.gateway.one_shot import TRY_LATER, Command, OneShot
from bus.gateway.template import Template

MAX_FILE_BYTES = 1024 * 1024

_HEADER = re.compile(r"^\s*\[\[\s*capability\s*\]\]", re.MULTILINE)
_HOST = re.compile(r"https?://(?P<user>[^/@]*@)?[^/@\s?#]+[/?]?", re.IGNORECASE)

Bytes = Annotated[int, Field(ge=1, le=64 * 1024 * 1024)]


class BadConnections(ValueError):
    """A file that cannot be used; `mistakes` are all that is wrong with it, each with its place."""

    def __init__(self, path: Path, mistakes: list[str]) -> None:
        count = f"{len(mistakes)} mistakes" if len(mistakes) > 1 else "a mistake"
        super().__init__("\n  ".join([f"{path} has {count}:", *mistakes]))
        self.mistakes = tuple(mistakes)


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _AgentTable(_Table):
    name: str
    concurrency: int = Field(default=64, ge=1, le=10_000)


class _Http(_Table):
    url: str
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"] = "GET"
    query: dict[str, str] = {}
    headers: dict[str, str] = {}
    body: Literal["json", "form", "none"] | dict[str, str] | None = None
    max_response_bytes: Bytes = DEFAULT_MAX_BYTES
    redirect_hosts: list[str] = []


class _Command(_Table):
    argv: list[str] = Field(min_length=1)
    lines: bool = False
    stdin: str = "json"
    output: Literal["json", "text"] = "json"
    env: dict[str, str] = {}
    cwd: str = "."
    concurrency: int = Field(default=1, ge=1, le=1000)
    max_output_bytes: Bytes = DEFAULT_MAX_BYTES
    retry_exit_codes: list[int] = [TRY_LATER]
    cancel_grace_s: float = Field(default=CANCEL_GRACE_S, gt=0, le=60)


class _Capability(_Table):
    name: str
    description: str
    input: dict[str, Any] | str = {"type": "object", "properties": {}, "additionalProperties": False}
    output: dict[str, Any] | str | None = None
    example: dict[str, Any] | None = None
    timeout_s: float = Field(default=10.0, gt=0, le=MAX_TIMEOUT_S)
    idempotent: bool = False
    sensitive: bool = False
    lenient: bool = False
    version: str = "1.0.0"
    accepts: list[str] = []
    http: _Http | None = None
    command: _Command | None = None


class _File(_Table):
    agent: _AgentTable
    capability: list[_Capability] = Field(min_length=1)


def load_connections(path: Path, environment: Mapping[str, str] | None = None) -> ConnectedAgent:
    """The agent that a file describes; `environment` is what `${NAME}` is looked up in, the process's own by default.

    Relative paths in it count from its folder. Starts nothing. Raises BadConnections with every mistake.
    """
    text = _read(path)
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise BadConnections(path, [f"it is not TOML: {problem}"]) from None
    reading = _Reading(path, text, os.environ if environment is None else environment)
    return reading.agent(raw)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise BadConnections(path, [f"it has more than {MAX_FILE_BYTES} bytes"])
        return data.decode()
    except OSError as problem:
        raise BadConnections(path, [f"it cannot be read: {problem.strerror}"]) from None
    except UnicodeDecodeError as problem:
        raise BadConnections(path, [f"it is not UTF-8: {problem.reason} at byte {problem.start}"]) from None


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in the file a capability stands."""

    number: int
    line: int | None
    name: str

    def __str__(self) -> str:
        line = f"line {self.line}, " if self.line is not None else ""
        return f"{line}capability {self.number + 1}{f' ({self.name})' if self.name else ''}"


class _Reading:
    """One reading of one file: what is found, and what is wrong with it."""

    def __init__(self, path: Path, text: str, environment: Mapping[str, str]) -> None:
        self._path = path
        self._folder = path.resolve().parent
        self._environment = environment
        self._lines = [text.count("\n", 0, found.end()) + 1 for found in _HEADER.finditer(text)]
        self._mistakes: list[str] = []
        self._names: set[str] = set()

    def agent(self, raw: dict[str, Any]) -> ConnectedAgent:
        """The agent. Raises BadConnections."""
        file = self._checked(raw)
        requests: list[tuple[Wrapped, HttpRequest]] = []
        commands: list[tuple[Wrapped, Command]] = []
        programs: dict[str, tuple[Program, list[Wrapped]]] = {}
        for number, table in self._capabilities(raw, file):
            given = raw["capability"][number]
            place = self._place(number, table.name if "name" in given else "")
            wrapped = self._wrapped(place, table)
            if ("http" in given) == ("command" in given):
                self._wrong(place, "", "must have either http or command")
            if table.http is not None:
                if find_spec("httpx") is None:
                    self._wrong(place, "http", "needs httpx: pip install 'envelope-bus[connectors]'")
                requests.append((wrapped, self._request(place, table.http, wrapped)))
            if table.command is not None and table.command.lines:
                program = self._program(place, table.command)
                # Capabilities with one and the same program share its process.
                programs.setdefault(table.command.model_dump_json(), (program, []))[1].append(wrapped)
            elif table.command is not None:
                commands.append((wrapped, self._command(place, table.command, wrapped)))
        if self._mistakes or file is None:
            raise BadConnections(self._path, self._mistakes)
        connectors: list[Connector] = [JsonLines(program, wrapped) for program, wrapped in programs.values()]
        connectors += [HttpService(requests)] if requests else []
        connectors += [OneShot(commands)] if commands else []
        return ConnectedAgent(file.agent.name, connectors, call_concurrency=file.agent.concurrency)

    # -- its shape --

    def _checked(self, raw: dict[str, Any]) -> _File | None:
        agent = raw.get("agent")
        if isinstance(agent, dict) and isinstance(agent.get("name"), str) and not is_agent_name(agent["name"]):
            self._mistakes.append(f"agent.name: {agent['name']!r} is not a name: 1 to 64 letters, digits, _ and -")
        try:
            return _File.model_validate(raw)
        except ValidationError as failed:
            for one in failed.errors(include_url=False):
                self._mistakes.append(self._told(raw, one["loc"], one["type"], one["msg"]))
            self._mistakes = list(dict.fromkeys(self._mistakes))
            return None

    def _told(self, raw: dict[str, Any], loc: tuple[int | str, ...], kind: str, message: str) -> str:
        told = {"extra_forbidden": "is not known here", "missing": "is missing"}.get(kind, message)
        where: Any = ".".join(str(part) for part in loc if not _is_branch(part))
        if len(loc) > 1 and loc[0] == "capability" and isinstance(loc[1], int):
            listed = raw["capability"][loc[1]]
            name = listed.get("name", "") if isinstance(listed, dict) else ""
            place = self._place(loc[1], name if isinstance(name, str) else "")
            inner = ".".join(str(part) for part in loc[2:] if not _is_branch(part))
            where = f"{place}: {inner}" if inner else str(place)
        return f"{where}: {told}"

    def _capabilities(self, raw: dict[str, Any], file: _File | None) -> Iterator[tuple[int, _Capability]]:
        """All of them; those of a wrong shape without what is wrong, so that the rest of them is checked as well."""
        if file is not None:
            yield from enumerate(file.capability)
            return
        listed = raw.get("capability")
        for number, one in enumerate(listed if isinstance(listed, list) else ()):
            kept = {"name": f"unnamed.n{number}", "description": "Is missing.", **one} if isinstance(one, dict) else {}
            for depth in (2, 1):
                try:
                    yield number, _Capability.model_validate(kept)
                    break
                except ValidationError as failed:
                    for found in failed.errors(include_url=False):
                        _drop(kept, found["loc"][:depth])

    def _place(self, number: int, name: str) -> _Place:
        return _Place(number, self._lines[number] if number < len(self._lines) else None, name)

    def _wrong(self, place: _Place, path: str, problem: str) -> None:
        self._mistakes.append(f"{place}: {f'{path}: ' if path else ''}{problem}")

    # -- its contents --

    def _wrapped(self, place: _Place, table: _Capability) -> Wrapped:
        fields: dict[str, Any] = {
            "description": table.description, "example": table.example, "timeout_s": table.timeout_s,
            "idempotent": table.idempotent, "sensitive": table.sensitive, "lenient": table.lenient,
            "version": table.version, "accepts": table.accepts,
            "input_schema": self._schema(place, "input", table.input),
        }  # fmt: skip
        if table.output is not None:
            fields["output_schema"] = self._schema(place, "output", table.output)
        wrapped = Wrapped(table.name, fields)
        if table.name in self._names:
            self._wrong(place, "name", "is there already")
        self._names.add(table.name)
        try:
            Agent("trial").capability(table.name, **fields)(_nothing)
        except RegistryError as refused:
            for one in refused.info.details["problems"]:
                path = {"input_schema": "input", "output_schema": "output"}.get(one["path"], one["path"])
                self._wrong(place, path, one["problem"])
        return wrapped

    def _schema(self, place: _Place, name: str, given: dict[str, Any] | str) -> dict[str, Any]:
        if isinstance(given, dict):
            return given
        try:
            found = orjson.loads((self._folder / given).read_bytes())
        except OSError as problem:
            self._wrong(place, name, f"the file {given} cannot be read: {problem.strerror}")
            return {"type": "object"}
        except orjson.JSONDecodeError as problem:
            self._wrong(place, name, f"the file {given} is not JSON: {problem}")
            return {"type": "object"}
        if not isinstance(found, dict):
            self._wrong(place, name, f"the file {given} is not a JSON object")
            return {"type": "object"}
        return found

    def _template(self, place: _Place, path: str, text: str, wrapped: Wrapped | None) -> Template:
        """The template; its names must be arguments of the capability, or there must be none."""
        try:
            template = Template.parse(text, self._environment)
        except LookupError as missing:
            self._wrong(place, path, f"the environment has no {missing.args[0]}; set it before the start")
            return Template(())
        except ValueError as problem:
            self._wrong(place, path, str(problem))
            return Template(())
        if wrapped is None and template.names:
            self._wrong(place, path, f"takes no arguments, but names {', '.join(template.names)}; {{{{ means a brace")
        elif wrapped is not None:
            known = wrapped.card["input_schema"].get("properties") or {}
            for name in template.names:
                if name not in known:
                    self._wrong(place, path, f"names {{{name}}}, which is no property of input; {{{{ means a brace")
        return template

    def _request(self, place: _Place, table: _Http, wrapped: Wrapped) -> HttpRequest:
        url = self._template(place, "http.url", table.url, wrapped)
        whole = "".join("x" if is_name else text for text, is_name in url.parts)
        found = _HOST.match(url.beginning)
        if url.parts and (
            found is None or (found.end() == len(url.beginning) and url.names and url.beginning[-1] not in "/?")
        ):
            self._wrong(place, "http.url", "must begin with http:// or https:// and a host without {arguments}")
        elif found is not None and found["user"]:
            self._wrong(place, "http.url", "must not hold a user; put credentials into headers, from the environment")
        elif any(not char.isprintable() or char in " #" for char in whole):
            self._wrong(place, "http.url", "must hold neither blanks nor #")
        schema = wrapped.card["input_schema"]
        for name in url.names:
            known = (schema.get("properties") or {}).get(name)
            has_default = isinstance(known, dict) and "default" in known
            if known is not None and name not in (schema.get("required") or ()) and not has_default:
                self._wrong(place, "http.url", f"needs {{{name}}}, so input must require it or give it a default")
        body: Any = table.body
        if isinstance(body, dict):
            body = {name: self._template(place, f"http.body.{name}", text, wrapped) for name, text in body.items()}
        return HttpRequest(
            table.method,
            url,
            {name: self._template(place, f"http.query.{name}", text, wrapped) for name, text in table.query.items()},
            {
                name: self._template(place, f"http.headers.{name}", text, wrapped)
                for name, text in table.headers.items()
            },
            body,
            table.max_response_bytes,
            tuple(table.redirect_hosts),
        )

    def _command(self, place: _Place, table: _Command, wrapped: Wrapped) -> Command:
        self._foreign(place, table, ("concurrency", "cancel_grace_s"), "only a program with lines = true")
        argv = [self._template(place, f"command.argv.{n}", word, wrapped) for n, word in enumerate(table.argv)]
        if argv[0].names:
            self._wrong(place, "command.argv.0", "the program itself must not come from the arguments")
        stdin: str | Template = table.stdin
        if table.stdin not in ("json", "none"):
            stdin = self._template(place, "command.stdin", table.stdin, wrapped)
        return Command(
            tuple(argv), self._cwd(place, table), stdin, table.output, self._environment_of(place, table),
            table.max_output_bytes, tuple(table.retry_exit_codes),
        )  # fmt: skip

    def _program(self, place: _Place, table: _Command) -> Program:
        self._foreign(place, table, ("stdin", "output", "retry_exit_codes"), "only a program without lines = true")
        argv = [self._template(place, f"command.argv.{n}", word, None).beginning for n, word in enumerate(table.argv)]
        return Program(
            tuple(argv), self._cwd(place, table), self._environment_of(place, table), table.concurrency,
            table.max_output_bytes, table.cancel_grace_s,
        )  # fmt: skip

    def _foreign(self, place: _Place, table: _Command, names: tuple[str, ...], who: str) -> None:
        for name in names:
            if name in table.model_fields_set:
                self._wrong(place, f"command.{name}", f"{who} has it")

    def _cwd(self, place: _Place, table: _Command) -> Path:
        cwd = self._folder / table.cwd
        if not cwd.is_dir():
            self._wrong(place, "command.cwd", f"{table.cwd} is no folder")
        return cwd

    def _environment_of(self, place: _Place, table: _Command) -> dict[str, Template]:
        return {name: self._template(place, f"command.env.{name}", text, None) for name, text in table.env.items()}


def _drop(table: dict[str, Any], path: tuple[int | str, ...]) -> None:
    """Takes what stands at a path out of a table, and the tables on the way out of what they were read from."""
    first, *rest = path
    if rest and isinstance(table.get(str(first)), dict):
        table[str(first)] = dict(table[str(first)])
        table[str(first)].pop(rest[0], None)
    else:
        table.pop(str(first), None)


def _is_branch(part: int | str) -> bool:
    """Whether a part of a place is pydantic's name for a branch of a union."""
    return isinstance(part, str) and (part.startswith(("literal[", "dict[")) or part in ("str", "dict"))


# It stands for a capability while its card is checked, and must not lend it a description.
async def _nothing(arguments: dict[str, Any]) -> None: ...
