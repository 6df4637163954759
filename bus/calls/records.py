"""Records: what is told about one call while it is worked at, numbered from 1 (REG-7, EDGE-2)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import orjson

from bus.broker.pull import Delivery
from bus.envelope import Envelope
from bus.errors import Rejected
from bus.trust.labels import labels_of
from bus.workflow.artifacts import Artifacts
from bus.workflow.references import DATA_REF, restore

log = logging.getLogger("bus.calls")


class Told(StrEnum):
    """What a record tells; the type of its envelope."""

    START = "agent_start"
    CHUNK = "chunk"
    STATUS = "status_update"
    TOOL_STARTED = "tool_call_started"
    TOOL_RESULT = "tool_call_result"
    END = "agent_end"


class Record(NamedTuple):
    """One record. `number` grows by one from record to record, whatever they tell.

    `agent` and `instance` are the replica that has the call, `caller` is who called. `size_bytes` is what it counts
    against the window of its reader, `labels` say where what it tells comes from, `age_s` how long ago it was stored.
    """

    number: int
    told: Told
    payload: Mapping[str, Any]
    agent: str
    instance: str
    caller: str
    size_bytes: int
    age_s: float = 0.0
    labels: tuple[str, ...] = ()

    @property
    def chunk(self) -> int:
        """The number of its chunk, from 1; 0 when it tells something else."""
        number: int = self.payload["chunk"] if self.told is Told.CHUNK else 0
        return number


async def read_record(delivery: Delivery, artifacts: Artifacts) -> Record | None:
    """Reads a record; None for what is none, with a line in the log.

    Raises BrokerError when its content is kept apart and cannot be fetched now.
    """
    try:
        envelope, size_bytes = Envelope.decode(delivery.data), len(delivery.data)
        if DATA_REF in envelope.extensions:
            envelope = await restore(envelope, artifacts)
            size_bytes = len(orjson.dumps(envelope.payload))
        return _record(envelope, delivery.subject.split(".")[3], size_bytes, delivery.age_s())
    except (Rejected, ValueError, KeyError, TypeError, IndexError) as problem:
        log.warning("something on %s is no record of a call, and is ignored: %s", delivery.subject[:200], problem)
        return None


def _record(envelope: Envelope, publisher: str, size_bytes: int, age_s: float) -> Record:
    payload = envelope.payload
    record = Record(
        payload["number"],
        Told(envelope.type),
        payload,
        envelope.sender,
        payload["instance"],
        envelope.to,
        size_bytes,
        age_s,
        tuple(labels_of(envelope)),
    )
    if publisher != envelope.sender:
        raise ValueError(f"its sender is {envelope.sender!r}, it was published as {publisher!r}")
    if type(record.number) is not int or type(record.chunk) is not int or not isinstance(record.instance, str):
        raise ValueError("number and chunk are whole numbers, instance is a string")
    if record.told is Told.CHUNK and (record.chunk < 1 or "data" not in payload):
        raise ValueError("a chunk has a number from 1 and data")
    if record.told is Told.END and type(payload["chunks"]) is not int:
        raise ValueError("the end says how many chunks there were")
    return record
