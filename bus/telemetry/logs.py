"""Log lines: JSON or for a console, with the ids of the message in hand on each, and without secrets.

The library logs through the standard library's `logging`, and leaves its set-up to the application; the command `bus`
sets it up with `configure`. An application of its own can use `LineFormatter` on a handler of its own.
"""

from __future__ import annotations

import contextvars
import json
import logging
import math
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from bus.envelope import Envelope
from bus.telemetry.redaction import Redaction, spoken
from bus.telemetry.spans import Span
from bus.text import plain

log = logging.getLogger("bus.messages")

MAX_TEXT_CHARS = 100_000
# Libraries whose every request would be a line; they log from warning on.
NOISY = ("asyncio", "httpcore", "httpx", "nats", "openai", "urllib3")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


# A context variable has to be one for the module. Every delivery has a context of its own, so nobody takes it back;
# calls of one worker share theirs and have to. The worker thread of a plain `def` handler gets a copy. A plain tuple,
# because one is made for every message.
InHand = contextvars.Token[tuple[Envelope, str, Span] | None]
in_hand: contextvars.ContextVar[tuple[Envelope, str, Span] | None] = contextvars.ContextVar("bus.in_hand", default=None)


def take_in_hand(envelope: Envelope, agent: str, span: Span, headers: Mapping[str, str]) -> InHand:
    """From here on, lines of this context are about this message; at debug, tells it whole.

    `in_hand.reset` with what it returns ends that.
    """
    token = in_hand.set((envelope, agent, span))
    if log.isEnabledFor(logging.DEBUG):
        log.debug("received %s from %s", envelope.type, envelope.sender, extra=_whole(envelope, headers))
    return token


def is_telling() -> bool:
    """Whether messages are told, which is at debug."""
    return log.isEnabledFor(logging.DEBUG)


def tell_sent(envelope: Envelope, headers: Mapping[str, str]) -> None:
    """At debug, tells a message that the broker has stored, whole."""
    if is_telling():
        log.debug("sent %s to %s", envelope.type, envelope.to, extra=_whole(envelope, headers))


def tell_answered(fields: Mapping[str, Any]) -> None:
    """At debug, tells the result of a call, given as the fields of its envelope, whole."""
    if log.isEnabledFor(logging.DEBUG):
        log.debug("answered %s to %s", fields.get("type"), fields.get("to"), extra={"envelope": dict(fields)})


def ids_of(envelope: Envelope | None) -> dict[str, str | None]:
    """The ids of a message, as `extra` of a line about one that is not in hand."""
    if envelope is None:
        return {}
    return {
        "trace_id": envelope.trace_id,
        "workflow_id": envelope.workflow_id,
        "message_id": envelope.message_id,
        "agent": envelope.to,
    }


def ids_in_hand() -> dict[str, str | None]:
    """The ids of the message in hand, none outside of one; `span_id` is None when no trace came with it."""
    found = in_hand.get()
    if found is None:
        return {}
    envelope, agent, span = found
    return ids_of(envelope) | ids_of_span(span, envelope.trace_id) | {"agent": agent}


def ids_of_span(span: Span, trace_id: str) -> dict[str, str | None]:
    """The ids of a span; without a context that came with its message, the trace id of the envelope."""
    context = span.context
    if context is None:
        return {"trace_id": trace_id, "span_id": None}
    return {"trace_id": context.trace_id, "span_id": context.span_id}


def _whole(envelope: Envelope, headers: Mapping[str, str]) -> dict[str, Any]:
    return {"envelope": dict(envelope.fields), "headers": dict(headers)}


class LineFormatter(logging.Formatter):
    """Makes one line of a record. `as_json`: one JSON object a line, whatever is in the record; else for a person.

    Names of `extra` that the record has become fields. What is not JSON (objects, NaN, lone surrogates) becomes text
    that is. Values under secret names and texts that look like secrets are hidden, in tracebacks too.
    """

    def __init__(self, *, as_json: bool, redaction: Redaction) -> None:
        super().__init__()
        self._as_json = as_json
        self._redaction = redaction

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        message = self._text(_message(record))
        fields = self._fields(record)
        trace = self._text(self._trace(record))
        when = datetime.fromtimestamp(record.created, UTC)
        if not self._as_json:
            return _for_a_person(when, record, message, fields, trace)
        line = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": plain(record.name, MAX_TEXT_CHARS),
            "message": message,
            **fields,
        }
        if trace:
            line["traceback"] = trace
        return json.dumps(line, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        own = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        fields: dict[str, Any] = own | ids_in_hand()
        hidden: dict[str, Any] = _as_json_value(self._redaction.value(fields))
        # What describes the line itself cannot be written over.
        return {f"{name}_" if name in ("time", "level", "logger", "message", "traceback") else name: value
                for name, value in hidden.items()}  # fmt: skip

    def _trace(self, record: logging.LogRecord) -> str:
        parts = [self.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
        parts += [record.exc_text] if record.exc_text and not parts else []
        parts += [self.formatStack(record.stack_info)] if record.stack_info else []
        return "\n".join(parts)

    def _text(self, text: str) -> str:
        return plain(self._redaction.text(plain(text, MAX_TEXT_CHARS)), MAX_TEXT_CHARS)


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes lines to a stream. One that cannot be made is still told, and never raises into who logged it."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Writes what is certain of a line that failed; a stream that is gone is given up."""
        problem = sys.exc_info()[0]
        if problem is None or issubclass(problem, OSError):
            return
        safe = logging.LogRecord(
            str(record.name), record.levelno, "", 0, "a line of %s:%d cannot be written: %s",
            (record.filename, record.lineno, problem.__name__), None,
        )  # fmt: skip
        self.stream.write(self.format(safe) + self.terminator)
        self.flush()


def configure(
    *, level: str, as_json: bool = False, redaction: Redaction | None = None, stream: TextIO | None = None
) -> None:
    """Sets up the logging of this process: lines from `level` on, on `stream` (standard error).

    It replaces what was there, so it is for programs, not for libraries. Libraries that log every request say only
    warnings.
    """
    handler = LineHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter(as_json=as_json, redaction=redaction or Redaction()))
    root = logging.getLogger()
    for other in list(root.handlers):
        root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        # The arguments do not fit the text, or cannot tell theirs; a line is worth more than its form.
        told = record.args.values() if isinstance(record.args, dict) else record.args or ()
        return f"{spoken(record.msg)} {' '.join(map(spoken, told))}"


def _as_json_value(value: Any) -> Any:
    """What `Redaction.value` gave, without what JSON or UTF-8 cannot carry."""
    if isinstance(value, str):
        return plain(value, MAX_TEXT_CHARS * 20)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {plain(name, MAX_TEXT_CHARS): _as_json_value(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_as_json_value(inner) for inner in value]
    return value


def _for_a_person(when: datetime, record: logging.LogRecord, message: str, fields: dict[str, Any], trace: str) -> str:
    about = " ".join(f"{name}={_short(value)}" for name, value in fields.items() if value is not None)
    head = f"{when.astimezone():%Y-%m-%d %H:%M:%S},{when.microsecond // 1000:03d} {record.levelname:<7} {record.name}: "
    # Lines that a text brings are indented, so that none can pass for a record of its own.
    lines = [_printable(line) for text in (message, trace) if text for line in text.split("\n")]
    first = f"{head}{lines[0] if lines else ''}{f'   [{about}]' if about else ''}"
    return "\n    ".join([first, *lines[1:]])


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _printable(text.replace("\n", "\\n"))


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(one if one.isprintable() else _escaped(one) for one in text)


def _escaped(char: str) -> str:
    return " " * 4 if char == "\t" else char.encode("unicode_escape").decode()
