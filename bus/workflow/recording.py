"""Recordings: a workflow's messages and the answers to its calls, as one document that outlives the streams (WF-8).

Made from the story of a workflow. Calls are in it when the workflow was begun with `record=True`; each is then a
broadcast of the type `call_recorded`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from bus.broker.connection import Connection
from bus.broker.records import Records
from bus.broker.streams import StreamNames
from bus.broker.subjects import token
from bus.envelope import Envelope
from bus.errors import BusError, error
from bus.workflow.artifacts import Artifacts
from bus.workflow.branches import branch_of, document_key
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
class RecordedDocument:
    """One of the workflow's shared documents as it was in the end, and who wrote it last."""

    name: str
    writer: str
    document: Any


@dataclass(frozen=True, slots=True)
class Recording:
    """One workflow: its messages in the order of their storing, its calls, the artifacts that they refer to, and its
    documents. Of a workflow that was rolled back, it has the branch that counts.
    """

    workflow_id: str
    messages: tuple[Recorded, ...]
    calls: tuple[RecordedCall, ...] = ()
    artifacts: Mapping[str, bytes] = field(default_factory=dict)
    documents: tuple[RecordedDocument, ...] = ()

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
            "documents": [{"name": one.name, "writer": one.writer, "document": one.document} for one in self.documents],
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
            documents = tuple(
                RecordedDocument(str(one["name"]), str(one["writer"]), one["document"]) for one in document["documents"]
            )
            artifacts = {name: base64.b64decode(text, validate=True) for name, text in document["artifacts"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise error("protocol.malformed", f"this is no recording: {problem!r}", path="$") from None
        causes = [one.cause for one in messages] + [one.cause for one in calls]
        for index, cause in enumerate(causes):
            # A message comes after its cause, so that no chain of causes is a circle.
            if cause is not None and not 0 <= cause < min(index, len(messages)):
                raise error("protocol.malformed", f"entry {index} names a cause that is not there", path="messages")
        return cls(str(document["workflow_id"]), messages, calls, artifacts, documents)

    @property
    def branch(self) -> int:
        """The branch that it is of."""
        return max((branch_of(one.envelope) for one in self.messages), default=0)

    @classmethod
    def read(cls, path: str | Path) -> Recording:
        """Reads a file; errors as `from_json`, and OSError."""
        return cls.from_json(Path(path).read_bytes())


async def record(story: Story, connection: Connection) -> Recording:
    """The recording of a workflow that has ended, with the artifacts that it names and the documents that it left.

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
    branch = max(branch_of(step.envelope) for step in story.steps)
    places: dict[int, int] = {}
    messages: list[Recorded] = []
    calls: list[RecordedCall] = []
    # In the order of storing; parents stand before their children where the times are the same.
    for index in sorted(range(len(story.steps)), key=lambda one: (story.steps[one].stored_at, one)):
        step = story.steps[index]
        if branch_of(step.envelope) != branch:
            continue
        # Clocks of a cluster may disagree; what seems to come before its cause has none.
        cause = None if step.parent is None else places.get(step.parent)
        if step.envelope.type == CALL_TYPE:
            calls.append(_call(step.envelope, cause))
        else:
            places[index] = len(messages)
            messages.append(Recorded(step.envelope, cause, step.death.code if step.death else "handled"))
    artifacts = await _artifacts(messages, calls, Artifacts(connection))
    documents = tuple([one async for one in _documents(connection, story.workflow_id, branch)])
    return Recording(story.workflow_id, tuple(messages), tuple(calls), artifacts, documents)


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


async def _documents(connection: Connection, workflow_id: str, branch: int) -> AsyncIterator[RecordedDocument]:
    records = Records(connection, StreamNames.of(connection.settings.namespace).workflows)
    first = document_key(token(workflow_id), branch, "")
    async for key, found in records.entries(f"{first}*"):
        if found.value is not None:
            yield RecordedDocument(key.removeprefix(first), found.writer, orjson.loads(found.value))


def _index(value: Any) -> int | None:
    if value is not None and type(value) is not int:
        raise TypeError(f"{value!r} is no index")
    return value
