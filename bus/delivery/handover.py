"""Handing over: what this replica cannot read, and a newer or older one of the same agent can (rolling upgrades).

All replicas share one queue, so during an upgrade either build may be given what only the other reads. It goes back
into the queue as long as a live replica accepts it, and is a dead letter only when none does.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from bus.broker.connection import Connection
from bus.broker.pull import Delivery
from bus.broker.store import store
from bus.broker.subjects import WorkSubject, is_key_lane
from bus.contracts.version import ContractVersion
from bus.delivery.letter import ATTEMPTS, attempts_before
from bus.delivery.settlement import Settlement, Verdict
from bus.errors import BusError, ErrorInfo
from bus.registry.peers import Peer, Peers

log = logging.getLogger("bus.delivery")

# On a copy that was handed over: the sequence of the message that it stands for.
HANDED_OVER = "Bus-Handed-Over"
# While a message waits for its copy it takes one of this replica's places, so that the others get more of the rest.
PAUSE_S = 0.1
ORDERED_PAUSE_S = 0.5
UNREADABLE = frozenset({"protocol.unsupported_schema", "protocol.unsupported_version", "protocol.no_handler"})

_ACK = Settlement(Verdict.ACK)
_LATER = Settlement(Verdict.NAK, delay_s=ORDERED_PAUSE_S)


class Instead(Protocol):
    """What may stand in place of a dead letter."""

    async def instead(self, delivery: Delivery, failure: ErrorInfo) -> Settlement | None:
        """The settlement, or None for the dead letter. Raises BrokerError, and then the message comes again."""
        ...


class HandOver:
    """Finds out who else can read a message, for one replica."""

    __slots__ = ("_agent", "_connection", "_max_deliver", "_peers", "_replica")

    def __init__(self, connection: Connection, agent: str, replica: str, peers: Peers) -> None:
        self._connection = connection
        self._agent = agent
        self._replica = replica
        self._peers = peers
        self._max_deliver = connection.settings.max_deliver

    async def instead(self, delivery: Delivery, failure: ErrorInfo) -> Settlement | None:
        """The settlement in place of a dead letter, or None when no live replica accepts the message.

        A copy is stored behind what waits, and counts no attempt against the retry policy. On a key lane, which keeps
        its order, and for a broadcast, which is not this agent's to send, the message itself is given back.
        Raises BrokerError, and then the message comes again.
        """
        # The limit is for replicas that say they accept it and do not.
        if failure.code not in UNREADABLE or _deliveries(delivery) > self._max_deliver:
            return None
        subject = self._connection.subjects.parse_work(delivery.subject)
        if not self._has_reader(await self._peers.of(self._agent), subject, failure):
            # A replica may have started a moment ago: a dead letter must not depend on who hears of it first.
            try:
                sure = await self._peers.surely_of(self._agent)
            except BusError:
                if not self._connection.is_connected:
                    raise
                return None
            if not self._has_reader(sure, subject, failure):
                return None
        log.info("%s hands a %s over to another of its replicas: %s", self._agent, subject.type, failure.message)
        target = self._connection.subjects.again(self._agent, delivery.subject)
        if target is None or is_key_lane(subject.lane):
            return _LATER
        await asyncio.sleep(PAUSE_S)
        await store(
            self._connection,
            target,
            delivery.data,
            _headers(delivery),
            timeout_s=self._connection.settings.publish_timeout_s,
        )
        return _ACK

    def _has_reader(self, peers: list[Peer], subject: WorkSubject, failure: ErrorInfo) -> bool:
        return any(peer.replica != self._replica and _can_read(peer, subject, failure) for peer in peers)


def _deliveries(delivery: Delivery) -> int:
    return attempts_before(delivery.headers) + delivery.attempt


def _can_read(peer: Peer, subject: WorkSubject, failure: ErrorInfo) -> bool:
    accepts = peer.accepts
    if failure.code == "protocol.unsupported_version":
        return failure.details.get("version") in accepts.envelopes
    if failure.code == "protocol.no_handler":
        return subject.type in accepts.majors
    version = ContractVersion.parse(failure.details["schema"])
    return version.type == subject.type and accepts.takes(version.type, version.major) is True


def _headers(delivery: Delivery) -> dict[str, str]:
    own = {name: value for name, value in delivery.headers.items() if not name.startswith("Nats-")}
    return own | {
        # The count shows others that a completion may exist, so that they look for it.
        ATTEMPTS: str(_deliveries(delivery)),
        HANDED_OVER: str(delivery.stream_seq),
        "Nats-Msg-Id": f"handed-over:{delivery.stream_seq}:{delivery.stored_ns}",
    }
