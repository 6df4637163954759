"""What becomes of spans, told across processes: every service answers a question on a core subject.

Spans are lost where they are made, and the doctor runs elsewhere. A service that has ended says it in its log instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import orjson

from bus.broker.connection import Connection
from bus.broker.questions import Answering, ask_all
from bus.telemetry.spans import Telemetry

ANSWER_S = 0.5


@dataclass(frozen=True, slots=True)
class SpanStatus:
    """The spans of one service: how many were sent, how many are lost, how many wait to be sent."""

    service: str
    instance_id: str
    exported: int
    dropped: int
    waiting: int


@contextlib.asynccontextmanager
async def span_status_told(connection: Connection, telemetry: Telemetry) -> AsyncIterator[None]:
    """Answers for one service as long as the body runs; without an endpoint for spans it does nothing.

    Raises BrokerError.
    """
    if telemetry.counts is None:
        yield
        return

    def answer(_: bytes) -> bytes:
        counts = telemetry.counts
        if counts is None:
            return b""
        return orjson.dumps(SpanStatus(telemetry.service, telemetry.instance_id, *counts))

    answering = Answering(connection, {connection.subjects.span_status: answer}, name=telemetry.service)
    await answering.start()
    try:
        yield
    finally:
        await answering.stop()


async def span_statuses(connection: Connection, *, within_s: float = ANSWER_S) -> list[SpanStatus]:
    """The services that record spans and run now, by name, as far as they answer in time. Raises BrokerError."""
    found = []
    answers: list[bytes] = []

    def take(answer: bytes) -> bool:
        # With nobody there the server answers itself, with nothing.
        answers.append(answer)
        return not answer

    await ask_all(connection, [connection.subjects.span_status], b"", take, timeout_s=within_s)
    for answer in answers:
        # Anybody may answer, so what cannot be read is nobody's.
        with contextlib.suppress(KeyError, TypeError, ValueError):
            told = orjson.loads(answer)
            found.append(
                SpanStatus(
                    str(told["service"]),
                    str(told["instance_id"]),
                    int(told["exported"]),
                    int(told["dropped"]),
                    int(told["waiting"]),
                )
            )
    return sorted(found, key=lambda one: (one.service, one.instance_id))
