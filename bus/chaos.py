"""Broken messages on purpose: what an agent does with each, on a private broker in a temporary folder."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

from bus.agent import Agent
from bus.broker.store import store
from bus.client import Bus
from bus.config import Settings
from bus.contracts.validate import validate
from bus.delivery.handler import Handler
from bus.envelope import Envelope, codec
from bus.errors import BusError, Rejected
from bus.testing import Entry, Identity, Ledger, NatsServer, settled

SENDER = "chaos"
HANDLED = "handled once"
SLOW_S = 3.0
DEPTH = codec.MAX_DEPTH + 1


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of broken message: what was sent, what should come of it, what the agent did."""

    name: str
    sent: str
    expected: str
    did: str

    @property
    def is_good(self) -> bool:
        """Whether the agent did what it should."""
        return self.did == self.expected


@dataclass(slots=True)
class _Case:
    name: str
    sent: str
    expected: str
    messages: list[Mapping[str, Any] | bytes]
    type: str
    is_slow: bool = False
    refusal: str = ""
    ids: list[str] = field(default_factory=list)


async def break_messages(agent: Agent, type: str, payload: Any, *, nats_server: str = "") -> list[Finding]:
    """Runs one replica of `agent` on a server of its own and sends it `payload` well and broken in many ways.

    The agent's handlers really run. Raises ValueError when it has no handler for `type`, BrokerError when the server
    cannot be started.
    """
    if type not in agent.handles:
        raise ValueError(
            f"{agent.name} has no handler for {type!r}; it handles {', '.join(agent.handles) or 'nothing'}"
        )
    cases = _cases(agent._handlers[type], agent.name, type, payload)
    with (
        tempfile.TemporaryDirectory(prefix="bus-chaos-") as folder,
        NatsServer(Path(folder), binary=nats_server) as server,
    ):
        settings = Settings.load(
            servers=server.url,
            ack_wait_s=2,
            grace_s=1,
            max_attempts=2,
            creds="",
            tls_ca="",
            tls_cert="",
            tls_key="",
            replicas=1,
        )
        async with Bus.connect(SENDER, settings=settings) as bus, agent.running(settings) as replica:
            for case in cases:
                await _send(bus, server, agent.name, case)
            ledger = await Ledger.read(bus)
            replica.hurry()
    return [Finding(case.name, case.sent, case.expected, _deed(case, agent.name, ledger)) for case in cases]


def _cases(handler: Handler, agent: str, type: str, payload: Any) -> list[_Case]:
    def envelope(**changes: Any) -> dict[str, Any]:
        fields = {**Envelope(sender=SENDER, to=agent, type=type, payload=payload).fields, **changes}
        return {name: value for name, value in fields.items() if value is not ...}

    def with_payload(name: str, sent: str, changed: Any) -> _Case:
        return _Case(name, sent, _expected(handler, changed), [envelope(payload=changed)], type)

    def bad(name: str, sent: str, code: str, message: Mapping[str, Any] | bytes) -> _Case:
        return _Case(name, sent, _dead(code), [message], type)

    def good(name: str, sent: str, *messages: Mapping[str, Any]) -> _Case:
        return _Case(name, sent, HANDLED, list(messages), type)

    now, twin = datetime.now(UTC), envelope()
    late = {"expires_at": (now - timedelta(seconds=1)).isoformat()}
    room = codec.MAX_BYTES - len(orjson.dumps(envelope())) - 8192
    deep: Any = []
    for _ in range(DEPTH):
        deep = [deep]
    cases = [
        good("good", "the payload as given", envelope()),
        bad("missing field", "no trace_id", "protocol.malformed", envelope(trace_id=...)),
        bad("wrong type", "trace_id is a number", "protocol.malformed", envelope(trace_id=7)),
        bad("wrong version", "version 7.0", "protocol.unsupported_version", envelope(version="7.0")),
        good("duplicate", "the same message twice", twin, twin),
        bad("late", "expired a second ago", "protocol.expired", envelope(extensions=late)),
        good(
            "reordered",
            "the later of two first",
            envelope(timestamp=now.isoformat()),
            envelope(timestamp=(now - timedelta(minutes=1)).isoformat()),
        ),
        good("large", f"{room // 1024} KiB in an unknown field", envelope(padding="x" * room)),
        _Case(
            "huge",
            "one byte over the limit",
            "refused protocol.too_large",
            [envelope(padding="x" * (codec.MAX_BYTES - len(orjson.dumps(envelope(padding=""))) + 1))],
            type,
        ),
        bad("deep", f"nested {DEPTH} levels", "protocol.malformed", envelope(padding=deep)),
        good("unknown fields", "a field and an extension from a later version", envelope(x=1, extensions={"x_new": 1})),
        bad("not JSON", "{not json", "protocol.malformed", b"{not json"),
        bad("forged", "from somebody else", "auth.unverified_sender", envelope(**{"from": "somebody"})),
        _Case(
            "unknown type",
            "a type without a handler",
            _dead("protocol.no_handler"),
            [envelope(type="x_other")],
            "x_other",
        ),
        _Case("slow broker", f"the broker stands still for {SLOW_S:.0f} s", HANDLED, [envelope()], type, is_slow=True),
        with_payload("payload: other kind", "a list in place of the payload", ["chaos"]),
    ]
    if isinstance(payload, dict):
        for name in list(payload)[:3]:
            without = {key: value for key, value in payload.items() if key != name}
            cases.append(with_payload("payload: missing field", f"no {name}", without))
            cases.append(with_payload("payload: wrong type", f"{name} is an object", {**payload, name: {"chaos": []}}))
        cases.append(with_payload("payload: unknown field", "one more field", {**payload, "x_chaos": 1}))
    return cases


def _dead(code: str) -> str:
    return f"dead letter {code}"


def _expected(handler: Handler, payload: Any) -> str:
    """By the handler's model; without one the handler has to take any JSON."""
    if handler.model is not None:
        try:
            validate(payload, handler.model)
        except Rejected as refused:
            return _dead(refused.info.code)
    return HANDLED


async def _send(bus: Bus, server: NatsServer, agent: str, case: _Case) -> None:
    subject = bus.connection.subjects.work(agent, "normal", SENDER, case.type)
    if case.is_slow:
        await asyncio.to_thread(server.pause)
        asyncio.get_running_loop().call_later(SLOW_S, server.resume)
    for message in case.messages:
        data = message if isinstance(message, bytes) else orjson.dumps(message)
        try:
            stored = await store(bus.connection, subject, data, {}, timeout_s=20)
        except BusError as refused:
            case.refusal = refused.info.code
            continue
        readable = not isinstance(message, bytes) and message.get("message_id")
        case.ids.append(str(readable or f"seq:{stored.seq}"))
    try:
        await settled(bus, 20, agents={agent})
    except TimeoutError:
        case.refusal = "it is never settled"


def _deed(case: _Case, agent: str, ledger: Ledger) -> str:
    """What became of all messages of a case; several deeds are all named."""
    if case.refusal:
        return f"refused {case.refusal}"
    entries = [ledger.entries.get(Identity(agent, SENDER, one), Entry()) for one in dict.fromkeys(case.ids)]
    return " and ".join(dict.fromkeys(map(_fate, entries)))


def _fate(entry: Entry) -> str:
    if len(entry.runs) > 1:
        return f"handled {len(entry.runs)} times"
    if entry.runs:
        return HANDLED
    codes = list(dict.fromkeys(entry.dead.values()))
    if codes:
        return _dead(", ".join(codes))
    return "waits" if entry.waiting else "lost"
