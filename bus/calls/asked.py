"""The request of a call: the payload of a `tool_call_request`, written and read (TOOL-1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from bus.calls.card import is_wanted
from bus.envelope import Envelope
from bus.errors import error

REQUEST_TYPE = "tool_call_request"
RESULT_TYPE = "tool_call_result"
MAX_REPAIRS = 3
MAX_CALL_ID_CHARS = 128
MAX_WINDOW = 1 << 30


class Window(NamedTuple):
    """How far the work may run ahead of who reads its stream: chunks and bytes that are told and not read yet.

    Without chunks there is no stream: only what happens on the way is told, and the result comes as ever.
    """

    chunks: int = 0
    bytes: int = 0


class Asked(NamedTuple):
    """One request. `version` is the version of the capability that the caller was made for, None for any.

    `repairs_left` is how often the arguments may still be mended; `max_result_bytes` asks for a result that is cut;
    `observe` asks for a stream, or for word of what happens on the way.
    """

    tool_call_id: str
    tool_name: str
    arguments: Any
    version: str | None = None
    repairs_left: int = MAX_REPAIRS
    max_result_bytes: int | None = None
    observe: Window | None = None

    @property
    def streams(self) -> bool:
        """Whether the result is asked for as a stream of chunks."""
        return self.observe is not None and self.observe.chunks > 0

    @classmethod
    def of(cls, envelope: Envelope) -> Asked:
        """Reads the payload; unknown members are ignored, `arguments` may be left out.

        Raises Rejected `protocol.malformed`, which names the member.
        """
        payload = envelope.payload
        if envelope.type != REQUEST_TYPE or not isinstance(payload, dict):
            raise error("protocol.malformed", f"a call is a {REQUEST_TYPE} with an object as payload", path="type")
        get = payload.get
        call_id, name, version = get("tool_call_id"), get("tool_name"), get("version")
        repairs, limit = get("repairs_left", MAX_REPAIRS), get("max_result_bytes")
        if not isinstance(call_id, str) or not 0 < len(call_id) <= MAX_CALL_ID_CHARS:
            raise _wrong("tool_call_id", f"a string of 1 to {MAX_CALL_ID_CHARS} characters")
        if not isinstance(name, str):
            raise _wrong("tool_name", "a string")
        if version is not None and not is_wanted(version):
            raise _wrong("version", "such as 1, 1.2 or 1.2.3")
        if type(repairs) is not int or repairs < 0:
            raise _wrong("repairs_left", "a whole number from 0")
        if limit is not None and (type(limit) is not int or limit < 1):
            raise _wrong("max_result_bytes", "a whole number from 1")
        observe = None if (wish := get("observe")) is None else _window(wish)
        return Asked(call_id, name, get("arguments", {}), version, min(repairs, MAX_REPAIRS), limit, observe)

    def to_payload(self) -> Mapping[str, Any]:
        """The payload; what has its ordinary value is left out."""
        payload = {"tool_call_id": self.tool_call_id, "tool_name": self.tool_name, "arguments": self.arguments}
        if self.version is not None:
            payload["version"] = self.version
        if self.repairs_left != MAX_REPAIRS:
            payload["repairs_left"] = self.repairs_left
        if self.max_result_bytes is not None:
            payload["max_result_bytes"] = self.max_result_bytes
        if self.observe is not None:
            payload["observe"] = {"chunks": self.observe.chunks, "bytes": self.observe.bytes} if self.streams else {}
        return payload


def _window(wish: Any) -> Window:
    if not isinstance(wish, dict):
        raise _wrong("observe", "an object")
    if not wish.get("chunks"):
        return Window()
    window = Window(wish["chunks"], wish.get("bytes", MAX_WINDOW))
    if not all(type(one) is int and 0 < one <= MAX_WINDOW for one in window):
        raise _wrong("observe", f"{{chunks, bytes}}, both whole numbers from 1 to {MAX_WINDOW}")
    return window


def _wrong(member: str, rule: str) -> Exception:
    return error("protocol.malformed", f"payload.{member} must be {rule}", path=f"payload.{member}")
