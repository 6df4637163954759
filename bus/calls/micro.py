"""NATS micro: a replica answers the discovery of the NATS tools, `nats micro ls`, `info` and so on (ADR-32, REG-12).

The answers are for people and their tools. The bus itself finds agents by the registry, which knows leases and cards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from bus.broker.connection import Connection
from bus.broker.questions import Answering
from bus.broker.subjects import micro
from bus.calls.card import Card
from bus.envelope import CURRENT, SUPPORTED
from bus.telemetry.call_metrics import Tally

NANOSECONDS = 1_000_000_000
MAX_DESCRIPTION_CHARS = 200


class Micro:
    """One replica as a micro service: the agent is the service, each capability an endpoint, the replica an instance.

    What it handles beside calls has no request subject, so the metadata alone has it. Whoever may use `$SRV.>` sees all
    of it, whatever rules say, because a question there has no asker.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        agent: str,
        instance: str,
        cards: Sequence[Card],
        handles: Iterable[str],
        tally: Callable[[str], Tally],
    ) -> None:
        self._cards = cards
        self._tally = tally
        self._started_at = datetime.now(UTC).isoformat()
        # A pattern, because the sender is a token of its own.
        self._where = [
            {
                "name": endpoint_name(card.name),
                "subject": connection.subjects.call(agent, "*", card.name),
                "queue_group": agent,
            }
            for card in cards
        ]
        listed = ", ".join(handles)
        about = [f"handles {listed}"] if listed else []
        about += [f"can be called for {', '.join(card.name for card in cards)}"] if cards else []
        self._service = {
            "name": agent,
            "id": instance,
            # It has to be SemVer. An agent has no version of its own; this one says what its callers have to write.
            "version": f"{CURRENT}.0",
            "metadata": {
                "bus.namespace": connection.settings.namespace,
                "bus.envelopes": ", ".join(sorted(SUPPORTED)),
                "bus.handles": listed,
            },
        }
        description = _short("; ".join(about) or "has no handlers")
        endpoints = [{**where, "metadata": _metadata(card)} for where, card in zip(self._where, cards, strict=True)]
        info = self._response("info", description=description, endpoints=endpoints)
        ping = self._response("ping")
        answers: dict[str, Callable[[bytes], bytes]] = {}
        for subject in micro("PING", agent, instance):
            answers[subject] = lambda _: ping
        for subject in micro("INFO", agent, instance):
            answers[subject] = lambda _: info
        for subject in micro("STATS", agent, instance):
            answers[subject] = lambda _: self._stats()
        self._answering = Answering(connection, answers, name=f"micro {agent}")

    async def start(self) -> None:
        """Begins to answer. Raises BrokerError."""
        await self._answering.start()

    async def stop(self) -> None:
        """Stops; a second call does nothing."""
        await self._answering.stop()

    def _stats(self) -> bytes:
        endpoints = []
        for where, card in zip(self._where, self._cards, strict=True):
            calls, errors, last_error, seconds = self._tally(card.name)
            total_ns = round(seconds * NANOSECONDS)
            endpoints.append(
                {
                    **where,
                    "num_requests": calls,
                    "num_errors": errors,
                    "last_error": last_error,
                    "processing_time": total_ns,
                    "average_processing_time": total_ns // calls if calls else 0,
                }
            )
        return self._response("stats", started=self._started_at, endpoints=endpoints)

    def _response(self, kind: str, **members: Any) -> bytes:
        return orjson.dumps({"type": f"io.nats.micro.v1.{kind}_response", **self._service, **members})


def endpoint_name(capability: str) -> str:
    """The name of a capability's endpoint. It may have no dot; a capability's name has no `-`."""
    return capability.replace(".", "-")


def _metadata(card: Card) -> dict[str, str]:
    return {
        "bus.capability": card.name,
        "bus.version": card.version,
        "bus.digest": card.digest,
        "bus.idempotent": "true" if card.idempotent else "false",
        "bus.sensitive": "true" if card.sensitive else "false",
        "bus.timeout_s": f"{card.timeout_s:g}",
        "bus.description": _short(card.description),
    }


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_DESCRIPTION_CHARS else f"{line[: MAX_DESCRIPTION_CHARS - 1]}…"
