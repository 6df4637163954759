"""The error table, and the exceptions that carry a row of it (REG-6).

One table serves the wire, the JSON-RPC edge, logs, documents and tests. On the wire an error is
`{code, number, message, retryable, advice, details}`; `message` is one line for a person (what, where,
what to do), `details` is for programs. A stack trace never travels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Self

_JSON_RPC_PARSE_ERROR: Final = -32700


class Advice(StrEnum):
    """What the receiver of an error should do next."""

    RETRY = "retry"
    REGENERATE = "regenerate"
    SWITCH_TOOL = "switch_tool"
    SUMMARISE = "summarise"
    RENEGOTIATE = "renegotiate"
    ASK_HUMAN = "ask_human"
    FIX = "fix"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """One row of the table: what a code means, whoever raises it.

    `retryable` is the default; an error may say otherwise. `aliases` are codes of other teams that are
    read as this one and never written.
    """

    number: int
    code: str
    json_rpc: int
    retryable: bool
    advice: Advice
    when: str
    aliases: tuple[str, ...] = ()


# fmt: off
_ROWS: Final = (
    ErrorKind(1001, "protocol.malformed", -32600, False, Advice.FIX, "bytes, shape, a field's type"),
    ErrorKind(1002, "protocol.unsupported_version", 1002, False, Advice.RENEGOTIATE,
              "envelope version unknown; details.supported"),
    ErrorKind(1003, "protocol.no_handler", -32601, False, Advice.FIX,
              "this agent has no handler for the type; details.handles"),
    ErrorKind(1004, "protocol.too_large", 1004, False, Advice.SUMMARISE,
              "over a size limit; details.limit, details.size"),
    ErrorKind(1005, "protocol.expired", 1005, False, Advice.STOP,
              "expires_at or the inherited deadline has passed"),
    ErrorKind(1006, "protocol.loop", 1006, False, Advice.STOP,
              "hops over the limit, or an agent met again on the path against its rule"),
    ErrorKind(1007, "protocol.budget_exhausted", 1007, False, Advice.STOP, "calls or tokens used up"),
    ErrorKind(1101, "tool.validation_failed", -32602, False, Advice.REGENERATE,
              "arguments or payload against the contract; details.errors [{path, problem}], "
              "details.schema, details.repairs_left", ("invalid_tool_call", "payload.invalid")),
    ErrorKind(1102, "protocol.unsupported_schema", 1102, False, Advice.RENEGOTIATE,
              "payload schema major unknown; details.supported"),
    ErrorKind(1201, "auth.unverified_sender", 1201, False, Advice.STOP,
              "`from` is not who the connection says"),
    ErrorKind(1202, "auth.permission_denied", 1202, False, Advice.ASK_HUMAN,
              "no rule allows it", ("permission_denied",)),
    ErrorKind(1203, "auth.confirmation_required", 1203, False, Advice.ASK_HUMAN,
              "waits for a person; details.confirmation_id"),
    ErrorKind(1204, "auth.untrusted_input", 1204, False, Advice.ASK_HUMAN,
              "external text on its way to a sensitive capability"),
    ErrorKind(1205, "auth.replayed", 1205, False, Advice.STOP, "signature seen before, or too old"),
    ErrorKind(1206, "auth.invalid_key", 1206, False, Advice.ASK_HUMAN,
              "a model provider or edge refused the key"),
    ErrorKind(2001, "registry.agent_not_found", 2001, True, Advice.SWITCH_TOOL,
              "no such agent is registered"),
    ErrorKind(2002, "registry.capability_not_found", -32601, False, Advice.SWITCH_TOOL,
              "nobody registered (or nobody that the asker may see) offers it; details.nearest"),
    ErrorKind(2003, "registry.invalid_card", 2003, False, Advice.FIX,
              "schema, example, TTL or name refused at registration"),
    ErrorKind(2004, "registry.no_common_version", 2004, False, Advice.RENEGOTIATE,
              "details.ours, details.theirs"),
    ErrorKind(3001, "tool.execution_failed", -32603, False, Advice.SWITCH_TOOL,
              "the handler raised; it may say that a retry helps", ("tool_execution_error",)),
    ErrorKind(3002, "tool.timeout", 3002, True, Advice.RETRY,
              "no answer in time; retry only what is idempotent or keyed", ("timeout",)),
    ErrorKind(3003, "upstream.rate_limit", 3003, True, Advice.RETRY,
              "details.retry_after_ms", ("rate_limited",)),
    ErrorKind(3004, "agent.busy", 3004, True, Advice.RETRY, "the bounded queue is full"),
    ErrorKind(3005, "agent.unavailable", 3005, True, Advice.RETRY,
              "registered, but nobody answers (no responders)"),
    ErrorKind(3006, "tool.cancelled", 3006, False, Advice.STOP, "cancelled by the caller or a person"),
    ErrorKind(3007, "tool.invalid_result", -32603, False, Advice.SWITCH_TOOL,
              "the result does not fit its contract"),
    ErrorKind(3008, "model.context_window_exceeded", 3008, False, Advice.SUMMARISE,
              "the text is longer than the model can read", ("context_window_exceeded",)),
    ErrorKind(3009, "model.invalid_output", 3009, False, Advice.REGENERATE,
              "model text that even the tolerant reader cannot read; details.raw"),
    ErrorKind(3010, "upstream.failed", 3010, True, Advice.RETRY, "the service behind a tool failed"),
    ErrorKind(3101, "tool.unknown_capability", -32601, False, Advice.SWITCH_TOOL,
              "the agent answers, but does not know the name; details.nearest", ("tool_not_found",)),
    ErrorKind(4001, "broker.unavailable", 4001, True, Advice.RETRY, "not connected within the deadline"),
    ErrorKind(4002, "broker.full", 4002, True, Advice.RETRY, "the stream refuses (back-pressure)"),
    ErrorKind(5000, "internal.error", -32603, False, Advice.STOP, "our fault; logged with the traceback"),
)
# fmt: on

TABLE: Final[Mapping[str, ErrorKind]] = MappingProxyType({row.code: row for row in _ROWS})
"""Every error kind by its code, in the order of its number."""

_BY_NAME: Final[Mapping[str, ErrorKind]] = MappingProxyType(
    {name: row for row in _ROWS for name in (row.code, *row.aliases)}
)


def kind(code: str) -> ErrorKind:
    """Return the row for a code or one of its aliases; KeyError when the table has no such row."""
    try:
        return _BY_NAME[code]
    except KeyError:
        raise KeyError(f"{code!r} is not in the error table; pick one of {', '.join(TABLE)}") from None


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An error as it travels: a code of the table, one line for a person, details for programs.

    An alias given as `code` becomes the table's own code. `details` holds JSON values only.
    """

    code: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict, hash=False)
    retryable: bool = field(kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", kind(self.code).code)
        object.__setattr__(self, "details", dict(self.details))

    @property
    def number(self) -> int:
        """The number of the code: 1000s protocol, 2000s registry, 3000s execution, 4000s broker."""
        return TABLE[self.code].number

    @property
    def advice(self) -> Advice:
        """What the receiver should do.

        The table's advice, unless the error itself contradicts it: retryable against the table is `retry`,
        and not retryable where the table says `retry` is `stop`.
        """
        row = TABLE[self.code]
        if self.retryable and not row.retryable:
            return Advice.RETRY
        if not self.retryable and row.advice is Advice.RETRY:
            return Advice.STOP
        return row.advice

    @property
    def json_rpc(self) -> int:
        """The code for a JSON-RPC response: -32700 for bytes that are not JSON, else the table's."""
        if self.code == "protocol.malformed" and self.details.get("not_json") is True:
            return _JSON_RPC_PARSE_ERROR
        return TABLE[self.code].json_rpc

    @property
    def retry_after_ms(self) -> int | None:
        """How long to wait before a retry, when the error says so."""
        value = self.details.get("retry_after_ms")
        return value if type(value) is int and value >= 0 else None

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON object that stands for this error on the wire."""
        return {
            "code": self.code,
            "number": self.number,
            "message": self.message,
            "retryable": self.retryable,
            "advice": self.advice.value,
            "details": dict(self.details),
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Read an error that another program wrote.

        Only `code` and `message` must be there, as strings; ValueError otherwise. A code that this table
        does not know (a newer peer) is read as `internal.error`, keeps its `retryable`, and what was
        received stands in `details.received`.
        """
        code, message = wire.get("code"), wire.get("message")
        if not isinstance(code, str) or not isinstance(message, str):
            raise ValueError("an error on the wire needs `code` and `message`, both strings")
        found = _BY_NAME.get(code)
        given = wire.get("details")
        details = dict(given) if isinstance(given, Mapping) else {}
        if found is None:
            found = TABLE["internal.error"]
            details["received"] = {name: wire.get(name) for name in ("code", "number", "advice")}
        retryable = wire.get("retryable")
        return cls(
            found.code,
            message,
            details,
            retryable=retryable if isinstance(retryable, bool) else found.retryable,
        )


class BusError(Exception):
    """The root of every error of this library; `.info` is what the wire sees.

    `code` is a code or alias of the table. `retryable` defaults to the table's word. Keyword arguments
    become `details`.
    """

    info: ErrorInfo

    def __init__(self, code: str, message: str, *, retryable: bool | None = None, **details: Any) -> None:
        super().__init__(message)
        row = kind(code)
        self.info = ErrorInfo(row.code, message, details, retryable=row.retryable if retryable is None else retryable)

    def __str__(self) -> str:
        return f"{self.info.code}: {self.info.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        # The constructors differ, so a pickled error is rebuilt from what it carries, not from `args`.
        return _restore, (type(self), self.info)


class Rejected(BusError):
    """A message or call was refused before anything ran (1xxx)."""


class RegistryError(BusError):
    """An agent or capability could not be found or registered (2xxx)."""


class ToolError(BusError):
    """The work itself failed, or nobody did it (3xxx)."""


class BrokerError(BusError):
    """The broker cannot be reached, or refuses to store (4xxx)."""


class RetryLater(ToolError):
    """Raised by a handler: the same message should be tried again after `delay_s` seconds."""

    def __init__(self, delay_s: float, message: str = "the handler asks for a later retry") -> None:
        super().__init__(
            "tool.execution_failed", message, retryable=True, retry_after_ms=round(max(delay_s, 0.0) * 1000)
        )


class PermanentFailure(ToolError):
    """Raised by a handler: this message will never succeed, so no retry."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__("tool.execution_failed", message, retryable=False, **details)


def _restore(cls: type[BusError], info: ErrorInfo) -> BusError:
    restored = cls.__new__(cls, info.message)
    restored.args = (info.message,)
    restored.info = info
    return restored


def error(code: str, message: str, *, retryable: bool | None = None, **details: Any) -> BusError:
    """Make the exception for a code: its class follows from the number's thousands."""
    families: dict[int, type[BusError]] = {1: Rejected, 2: RegistryError, 3: ToolError, 4: BrokerError}
    cls = families.get(kind(code).number // 1000, BusError)
    return cls(code, message, retryable=retryable, **details)
