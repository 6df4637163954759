"""The result of a call, in the one shape that all of them have: `{ok, data, error, meta}` (TOOL-2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from bus.errors import BusError, ErrorInfo, error


@dataclass(frozen=True, slots=True)
class Result:
    """What a call came to. `data` is there when it is `ok`, `error` when it is not, never both.

    `meta` has `tool_name`, `tool_version`, `trace_id` and `elapsed_ms` (the work alone, without the way), where known
    `model_id`, and where they apply `warnings`, `coerced`, `replayed` (a stored result) and `whole` (the data was cut;
    `sha256` and `size_bytes` of the artifact that holds all of it).
    """

    ok: bool
    data: Any = None
    error: ErrorInfo | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    tool_call_id: str = ""

    def __post_init__(self) -> None:
        if self.ok is (self.error is not None) or (not self.ok and self.data is not None):
            raise ValueError("a result has data or an error, and never both")

    @classmethod
    def of_error(cls, info: ErrorInfo, *, tool_call_id: str = "", meta: Mapping[str, Any] | None = None) -> Self:
        """A failed one."""
        return cls(False, None, info, meta or {}, tool_call_id)

    @property
    def labels(self) -> tuple[str, ...]:
        """Where the data comes from, such as `external`, as its capability says (SEC-4)."""
        labels = self.meta.get("labels")
        return tuple(one for one in labels if isinstance(one, str)) if isinstance(labels, list) else ()

    @property
    def status(self) -> str:
        """The status of the envelope that carries it: pending, success, error, or cancelled."""
        if self.error is None:
            return "pending" if self.is_pending else "success"
        return "cancelled" if self.error.code == "tool.cancelled" else "error"

    @property
    def is_pending(self) -> bool:
        """Whether the work goes on as a task, whose id is `meta["task_id"]`, and there is no data yet."""
        return self.meta.get("status") == "pending"

    def unwrap(self) -> Any:
        """The data. Raises the error of a failed one, as the exception that its code stands for."""
        if self.error is not None:
            raise raised(self.error)
        return self.data

    def to_payload(self) -> dict[str, Any]:
        """The payload of a `tool_call_result`."""
        if self.error is None:
            return {"tool_call_id": self.tool_call_id, "ok": True, "data": self.data, "meta": self.meta}
        return {"tool_call_id": self.tool_call_id, "ok": False, "error": self.error.to_wire(), "meta": self.meta}

    @classmethod
    def from_payload(cls, payload: Any) -> Self:
        """Reads the payload of a `tool_call_result`, also one that other teams write: `{status, output | error}`.

        Raises Rejected `protocol.malformed` for everything else.
        """
        if not isinstance(payload, dict):
            raise error("protocol.malformed", "the result of a call is not an object", path="payload")
        meta, call_id = payload.get("meta"), payload.get("tool_call_id")
        ok, data, problem = payload.get("ok"), payload.get("data"), payload.get("error")
        if ok is None and payload.get("status") in ("success", "error"):
            ok, data = payload["status"] == "success", payload.get("output")
        if not isinstance(ok, bool) or ok is (problem is not None) or (not ok and data is not None):
            raise error("protocol.malformed", "the result of a call is not {ok, data, error, meta}", path="payload")
        info = None
        if problem is not None:
            try:
                info = ErrorInfo.from_wire(problem if isinstance(problem, Mapping) else {})
            except ValueError as shape:
                raise error("protocol.malformed", f"the error of a result: {shape}", path="payload.error") from None
        return cls(ok, data, info, meta if isinstance(meta, dict) else {}, call_id if isinstance(call_id, str) else "")


def raised(info: ErrorInfo) -> BusError:
    """The exception for an error that came over the wire."""
    exception = error(info.code, info.message, retryable=info.retryable)
    exception.info = info
    return exception
