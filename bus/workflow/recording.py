"""Recordings: a workflow's messages and the answers to its calls, as one document that outlives the streams (WF-8).

Made from the story of a workflow. Calls are in it when the workflow was begun with `record=True`; each is then a
broadcast of the type `call_recorded`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from bus.envelope import Envelope
from bus.errors import BusError, error
from bus.workflow.artifacts import Artifacts
from bus.workflow.story import OPEN, Story

FORMAT = 1
CALL_TYPE = "call_recorded"
RECORDED = "recorded"
MAX_ARTIFACT_BYTES = 32 * 1024 * 1024
_SHA256 = re.compile(rb"\b[0-9a-f]{64}\b")


@dataclass(frozen=True, slots=True)
class Recorded:
    """One message: `cause` is the index of the one that caused it, `outcome` is `handled` or the code of its death."""

    envelope: Envelope
    cause: int | None
    outcome: str


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call made while the message with the index `cause` was handled, and the payload of its result."""

    caller: str
    cause: int | None
    capability: str
    arguments: Any
    result: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Recording:
    """One workflow: its messages in the order of their storing, its calls, and the artifacts that they refer to."""

    workflow_id: str
    messages: tuple[Recorded, ...]
    calls: tuple[RecordedCall, ...] = ()
    artifacts: Mapping[str, bytes] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.messages)

    def inputs(self, agent: str) -> list[int]:
        """The messages that others sent to an agent, as indices, in their order."""
        return [
            index
            for index, one in enumerate(self.messages)
            if one.envelope.to == agent and one.envelope.sender != agent
        ]

    def outputs(self, agent: str, cause: int) -> list[int]:
        """What an agent sent while it handled the message with the index `cause`."""
        return [index for index, one in enumerate(self.messages) if one.cause == cause and one.envelope.sender == agent]

    def origin(self, agent: str, index: int) -> int | None:
        """The nearest of an agent's own messages that led to this one; None when none did."""
        cause = self.messages[index].cause
        while cause is not None and self.messages[cause].envelope.sender != agent:
            cause = self.messages[cause].cause
        return cause

    def to_json(self) -> bytes:
        """The document, for a file in a repository."""
        document = {
            "format": FORMAT,
            "workflow_id": self.workflow_id,
            "messages": [
                {"envelope": orjson.loads(one.envelope.encode()), "cause": one.cause, "outcome": one.outcome}
                for one in self.messages
            ],
            "calls": [
                {
                    "caller": one.caller,
                    "cause": one.cause,
                    "capability": one.capability,
                    "arguments": one.arguments,
                    "result": dict(one.result),
                }
                for one in self.calls
            ],
            "artifacts": {name: base64.b64encode(data).decode() for name, data in sorted(self.artifacts.items())},
        }
        return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    @classmethod
    def from_json(cls, data: bytes) -> Recording:
        """Reads the document. Raises Rejected `protocol.malformed` or `protocol.unsupported_version`."""
        try:
            document = orjson.loads(data)
            if document["format"] != FORMAT:
                raise error(
                    "protocol.unsupported_version",
                    f"the recording has the format {document['format']}, this release reads {FORMAT}",
                    supported=[FORMAT],
                )
            messages = tuple(
                Recorded(Envelope.from_fields(one["envelope"]), _index(one["cause"]), str(one["outcome"]))
                for one in document["messages"]
            )
            calls = tuple(
                RecordedCall(
                    str(one["caller"]),
                    _index(one["cause"]),
                    str(one["capability"]),
                    one["arguments"],
                    dict(one["result"]),
                )
                for one in document["calls"]
            )
            artifacts = {name: base64.b64decode(text, validate=True) for name, text in document["artifacts"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise error("protocol.malformed", f"this is no recording: {problem!r}", path="$") from None
        causes = [one.cause for one in messages] + [one.cause for one in calls]
        for index, cause in enumerate(causes):
            # A message comes after its cause, so that no chain of causes is a circle.
            if cause is not None and not 0 <= cause < min(index, len(messages)):
                raise error("protocol.malformed", f"entry {index} names a cause that is not there", path="messages")
        return cls(str(document["workflow_id"]), messages, calls, artifacts)

    @classmethod
    def read(cls, path: str | Path) -> Recording:
        """Reads a file; errors as `from_json`, and OSError."""
        return cls.from_json(Path(path).read_bytes())


async def record(story: Story, artifacts: Artifacts) -> Recording:
    """The recording of a workflow that has ended, with the artifacts that it names.

    Raises ToolError `tool.execution_failed` when nothing is known of it or something is still to come, Rejected
    `protocol.too_large` when the artifacts have more than 32 MiB together, and BrokerError.
    """
    if not story.steps:
        raise error("tool.execution_failed", f"no message of the workflow {story.workflow_id} is known")
    if any(step.state in OPEN for step in story.steps):
        raise error(
            "tool.execution_failed",
            f"the workflow {story.workflow_id} is {story.status}; only what has ended can be replayed",
        )
    ordered = sorted(range(len(story.steps)), key=lambda index: (story.steps[index].stored_at, index))
    steps = [story.steps[index] for index in ordered]
    places = {
        old: place for place, old in enumerate(old for old in ordered if story.steps[old].envelope.type != CALL_TYPE)
    }
    messages: list[Recorded] = []
    calls: list[RecordedCall] = []
    for step in steps:
        cause = None if step.parent is None else places.get(step.parent)
        if cause is not None and cause >= len(messages):
            cause = None  # Clocks of a cluster may disagree; what seems to come before its cause has none.
        if step.envelope.type == CALL_TYPE:
            calls.append(_call(step.envelope, cause))
        else:
            messages.append(Recorded(step.envelope, cause, step.death.code if step.death else "handled"))
    return Recording(story.workflow_id, tuple(messages), tuple(calls), await _artifacts(messages, calls, artifacts))


def call_recorded(cause: Envelope, caller: str, capability: str, arguments: Any, result: Mapping[str, Any]) -> Envelope:
    """The broadcast that records one call that `cause` made."""
    return Envelope(
        sender=caller,
        to="*",
        type=CALL_TYPE,
        trace_id=cause.trace_id,
        workflow_id=cause.workflow_id,
        session_id=cause.session_id,
        extensions={"causation_id": cause.message_id},
        payload={"capability": capability, "arguments": arguments, "result": dict(result)},
    )


def _call(envelope: Envelope, cause: int | None) -> RecordedCall:
    payload = envelope.payload if isinstance(envelope.payload, dict) else {}
    result = payload.get("result")
    return RecordedCall(
        envelope.sender,
        cause,
        str(payload.get("capability")),
        payload.get("arguments"),
        result if isinstance(result, dict) else {},
    )


async def _artifacts(messages: list[Recorded], calls: list[RecordedCall], artifacts: Artifacts) -> dict[str, bytes]:
    """Every artifact whose name stands anywhere in what was said; most things that look like one are none."""
    found: dict[str, bytes] = {}
    left = MAX_ARTIFACT_BYTES
    for sha256 in _named(messages, calls):
        try:
            data = await artifacts.get(sha256, max_bytes=left)
        except BusError as problem:
            if problem.info.code == "tool.execution_failed":
                continue
            raise
        if hashlib.sha256(data).hexdigest() == sha256:
            found[sha256] = data
            left -= len(data)
    return found


def _named(messages: list[Recorded], calls: list[RecordedCall]) -> Iterator[str]:
    said = [(one.envelope.payload, one.envelope.extensions.get("data_ref")) for one in messages]
    said += [(one.arguments, one.result) for one in calls]
    yield from dict.fromkeys(found.decode() for one in said for found in _SHA256.findall(orjson.dumps(one)))


def _index(value: Any) -> int | None:
    if value is not None and type(value) is not int:
        raise TypeError(f"{value!r} is no index")
    return value
