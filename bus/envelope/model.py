"""The envelope: one message, read and written, never changed (ENV-1, ENV-4)."""

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NoReturn, NotRequired, Self, TypedDict, cast

from bus.envelope import codec, ids, timestamps, versions

# The shape after `check_fields`; only for the type checker, the dict itself is plain.
_Fields = TypedDict(
    "_Fields",
    {
        "version": str,
        "message_id": str,
        "trace_id": str,
        "session_id": str | None,
        "workflow_id": str | None,
        "from": str,
        "to": str,
        "role": NotRequired[str | None],
        "type": str,
        "phase": NotRequired[str | None],
        "status": NotRequired[str | None],
        "timestamp": NotRequired[str],
        "extensions": dict[str, Any],
        "payload": Any,
    },
)

_WIRE_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {("sender" if name == "from" else name): name for name in codec.FIELDS}
)
_new: Final = object.__new__
_set_attribute: Final = object.__setattr__
_ONLY_WITH_A_MEANING: Final = frozenset({"role", "phase", "status", "timestamp"})


class Envelope:
    """One message on the bus. Frozen: `replace` makes a changed copy.

    Made by hand it is checked and completed: a new UUIDv7 `message_id`, a new W3C `trace_id`, the `timestamp`
    of now. `role`, `phase` and `status` are left out where they are None, and so is the payload: it becomes
    {}. The payload is not copied: whoever passes one must not change it afterwards. Raises Rejected, as
    `decode` does.
    """

    __slots__ = ("_fields",)

    _fields: _Fields

    def __init__(
        self,
        *,
        sender: str,
        to: str,
        type: str,
        message_id: str | None = None,
        trace_id: str | None = None,
        session_id: str | None = None,
        workflow_id: str | None = None,
        role: str | None = None,
        phase: str | None = None,
        status: str | None = None,
        timestamp: str | None = None,
        extensions: Mapping[str, Any] | None = None,
        payload: Any = None,
        version: str = versions.CURRENT,
    ) -> None:
        if message_id is None:
            message_id = ids.new_message_id()
            if trace_id is None:
                trace_id = ids.trace_id_like(message_id)
        fields: dict[str, Any] = {
            "version": version,
            "message_id": message_id,
            "trace_id": ids.new_trace_id() if trace_id is None else trace_id,
            "session_id": session_id,
            "workflow_id": workflow_id,
            "from": sender,
            "to": to,
            "type": type,
            "timestamp": timestamp,
            "extensions": {} if extensions is None else dict(extensions),
            "payload": {} if payload is None else payload,
        }
        if role is not None:
            fields["role"] = role
        if phase is not None:
            fields["phase"] = phase
        if status is not None:
            fields["status"] = status
        if version != versions.CURRENT:
            versions.check(fields)
        if timestamp is None:
            codec.check_fields(fields, timed=False)
            fields["timestamp"] = timestamps.now()
        else:
            codec.check_fields(fields)
        _set_attribute(self, "_fields", fields)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a message from its bytes.

        Absent `session_id`, `workflow_id`, `extensions` and `payload` become null, null, {} and {}; an absent
        `timestamp` stays None. Unknown fields and extensions are kept. Raises Rejected:
        `protocol.too_large`, `protocol.malformed` (details.path), `protocol.unsupported_version`
        (details.supported).
        """
        return cls._checked(codec.parse(data))

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Read a message from its fields, named as on the wire; the same rules as `decode`."""
        return cls._checked(dict(fields))

    @classmethod
    def _checked(cls, fields: dict[str, Any]) -> Self:
        if fields.get("version") != versions.CURRENT:
            versions.check(fields)
        codec.check_fields(fields)
        if "session_id" not in fields:
            fields["session_id"] = None
        if "workflow_id" not in fields:
            fields["workflow_id"] = None
        if "extensions" not in fields:
            fields["extensions"] = {}
        if "payload" not in fields:
            fields["payload"] = {}
        envelope = _new(cls)
        _set_attribute(envelope, "_fields", fields)
        return envelope

    def encode(self) -> bytes:
        """Write the message as JSON; an absent timestamp becomes the time of this call.

        Datetimes and UUIDs inside are written as their standard strings. Raises Rejected
        `protocol.malformed` for what JSON cannot say: NaN and infinity, integers beyond 64 bits, lone
        surrogates, other Python objects. The size is the publisher's to check, headers included.
        """
        fields = self._fields
        if "timestamp" not in fields:
            fields = {**fields, "timestamp": timestamps.now()}
        return codec.render(fields)

    def replace(self, **changes: Any) -> Self:
        """Return a checked copy with these fields changed, under their Python names; unknown fields stay.

        None for `role`, `phase`, `status` or `timestamp` takes the field away. TypeError for a name that is
        no field; Rejected for a value that the field does not allow.
        """
        fields = self._copy()
        for name, value in changes.items():
            wire_name = _WIRE_NAMES.get(name)
            if wire_name is None:
                raise TypeError(f"an envelope has no field {name!r}; it has {', '.join(_WIRE_NAMES)}")
            if value is None and name in _ONLY_WITH_A_MEANING:
                fields.pop(wire_name, None)
            else:
                fields[wire_name] = dict(value) if isinstance(value, MappingProxyType) else value
        return self._checked(fields)

    @property
    def fields(self) -> Mapping[str, Any]:
        """Every field as on the wire, unknown ones too; read only."""
        return MappingProxyType(cast(dict[str, Any], self._fields))

    @property
    def unknown(self) -> dict[str, Any]:
        """The top-level fields that envelope 1.2 does not name."""
        return {name: value for name, value in self._fields.items() if name not in codec.FIELDS}

    @property
    def version(self) -> str:
        """The version of the envelope, such as 1.2."""
        return self._fields["version"]

    @property
    def message_id(self) -> str:
        """The id of this message: one sender never uses it for another one."""
        return self._fields["message_id"]

    @property
    def trace_id(self) -> str:
        """The trace that this message belongs to."""
        return self._fields["trace_id"]

    @property
    def session_id(self) -> str | None:
        """The conversation that it belongs to."""
        return self._fields["session_id"]

    @property
    def workflow_id(self) -> str | None:
        """The piece of work that it belongs to."""
        return self._fields["workflow_id"]

    @property
    def sender(self) -> str:
        """The agent that wrote it; `from` on the wire."""
        return self._fields["from"]

    @property
    def to(self) -> str:
        """The agent that it is for, or `*` for every agent."""
        return self._fields["to"]

    @property
    def address(self) -> tuple[str, str, str]:
        """Sender, receiver and type: what the subject repeats."""
        fields = self._fields
        return fields["from"], fields["to"], fields["type"]

    @property
    def role(self) -> str | None:
        """Who speaks: user, assistant, system or tool."""
        return self._fields.get("role")

    @property
    def type(self) -> str:
        """What kind of message it is: names the handler and the payload's contract."""
        return self._fields["type"]

    @property
    def phase(self) -> str | None:
        """The phase of the workflow."""
        return self._fields.get("phase")

    @property
    def status(self) -> str | None:
        """How a result ended: pending, success, error or cancelled."""
        return self._fields.get("status")

    @property
    def timestamp(self) -> str | None:
        """When it was written, RFC 3339; None when its writer did not say."""
        return self._fields.get("timestamp")

    @property
    def extensions(self) -> Mapping[str, Any]:
        """The extensions, registered and others; read only."""
        return MappingProxyType(self._fields["extensions"])

    @property
    def payload(self) -> Any:
        """The payload as JSON values; not copied, so do not change it."""
        return self._fields["payload"]

    @property
    def causation_id(self) -> str | None:
        """The message_id of the message that caused this one."""
        return self._fields["extensions"].get("causation_id")

    @property
    def correlation_id(self) -> str | None:
        """The message_id or call that this one answers."""
        return self._fields["extensions"].get("correlation_id")

    @property
    def schema(self) -> str | None:
        """The payload's contract and version, such as draft_request@2.1."""
        return self._fields["extensions"].get("schema")

    @property
    def expires_at(self) -> datetime | None:
        """The moment after which nobody should handle the message, in UTC."""
        text = self._fields["extensions"].get("expires_at")
        return None if text is None else timestamps.instant(text)

    @property
    def hops(self) -> int:
        """How many messages led to this one in a row."""
        return int(self._fields["extensions"].get("hops", 0))

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"an envelope is frozen; use replace({name}=...) for a changed copy")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("an envelope is frozen; use replace(...) for a changed copy")

    def __eq__(self, other: object) -> bool:
        return self._fields == other._fields if isinstance(other, Envelope) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._fields["message_id"])

    def __repr__(self) -> str:
        return f"<Envelope {self.type} {self.sender} -> {self.to} {self.message_id}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Envelope.from_fields, (self._copy(),)

    def _copy(self) -> dict[str, Any]:
        return dict(cast(dict[str, Any], self._fields))
