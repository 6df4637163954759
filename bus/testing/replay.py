"""Replay: a recorded workflow against a changed agent, on a broker of its own (WF-8).

The agent really runs, with its state, artifacts and retries. Everybody else is the recording: their messages come when
what had led to them was sent again, and calls get the answers that they got then.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from bus.agent import Agent
from bus.broker.connection import Connection
from bus.broker.reader import StreamReader
from bus.broker.records import Records
from bus.broker.store import store
from bus.broker.streams import StreamNames
from bus.broker.subjects import token
from bus.client import Bus
from bus.config import Settings
from bus.contracts.result import Result
from bus.envelope import Envelope, dedupe_header
from bus.errors import Rejected, error
from bus.telemetry.context import TraceContext
from bus.testing.server import NatsServer
from bus.testing.waiting import settled
from bus.workflow.branches import document_key
from bus.workflow.calling import Streamed, Submitted
from bus.workflow.comparison import Change, Compared, Comparison, Handling, Verdict, compared, differences, pair
from bus.workflow.record import WorkflowRecord
from bus.workflow.record_store import RecordStore
from bus.workflow.recording import RecordedCall, Recording

STORE_S = 10.0
# What was right at its time would now be refused, or wait.
PASSED = ("expires_at", "deliver_at", "budget")


async def replay(
    recording: Recording,
    agent: Agent,
    *,
    ignore: Iterable[str] = (),
    timeout_s: float = 60.0,
    nats_server: str = "",
) -> Comparison:
    """Runs the agent against what was recorded, one message after another, and compares what it sends and calls.

    `ignore` are patterns of dotted paths that may differ: `payload.at`, `payload.items.*.id`. Nothing leaves the broker
    of the replay: what the agent does beside the bus, it does. Raises ValueError when nothing was recorded for
    the agent, TimeoutError when one message does not settle within `timeout_s`, BrokerError.
    """
    if not recording.inputs(agent.name):
        raise ValueError(f"the workflow {recording.workflow_id} has no message to {agent.name}")
    with (
        tempfile.TemporaryDirectory(prefix="bus-replay-") as folder,
        NatsServer(Path(folder), binary=nats_server) as server,
    ):
        settings = Settings.load(servers=server.url, creds="", tls_ca="", tls_cert="", tls_key="", replicas=1)
        async with Bus.connect("replay", settings=settings) as bus:
            await _lay_out(recording, agent.name, bus)
            run = _Run(recording, agent.name, bus, tuple(ignore), timeout_s)
            async with agent.running(settings, stand_in=run.calls):
                return await run.all()


async def _lay_out(recording: Recording, agent: str, bus: Bus) -> None:
    """What the agent finds: the artifacts, the record, and the documents as others left them; its own it writes."""
    for data in recording.artifacts.values():
        await bus.artifacts.put(data, name="recorded", media_type="application/octet-stream")
    workflow_id = recording.workflow_id
    await RecordStore(bus.connection).begin(lambda by: WorkflowRecord.begun(workflow_id, "replay", by), goes_on=True)
    records = Records(bus.connection, StreamNames.of(bus.connection.settings.namespace).workflows)
    first = document_key(token(workflow_id), recording.branch, "")
    for one in recording.documents:
        if one.writer.partition(",")[0] != agent:
            value = orjson.dumps(one.document, option=orjson.OPT_SORT_KEYS)
            await records.write(f"{first}{one.name}", value, after=None)


class _Calls:
    """Answers calls as they were answered then, per handled message: those with the same arguments first."""

    def __init__(self, recording: Recording, agent: str, ignore: tuple[str, ...]) -> None:
        self._ignore = ignore
        self._left: dict[str, list[RecordedCall]] = defaultdict(list)
        self.made: dict[str, list[Compared]] = defaultdict(list)
        for call in recording.calls:
            if call.caller == agent and call.cause is not None:
                self._left[recording.messages[call.cause].envelope.message_id].append(call)

    async def call(
        self, capability: str, arguments: Any, *, cause: Envelope, parent: TraceContext | None, **options: Any
    ) -> Result:
        """The recorded result. Raises the recorded error, or `agent.unavailable` when nothing was recorded."""
        if hasattr(arguments, "model_dump"):
            arguments = arguments.model_dump(mode="json", by_alias=True)
        left = self._left[cause.message_id]
        fitting = [call for call in left if call.capability == capability]
        if not fitting:
            self.made[cause.message_id].append(Compared(Verdict.ADDED, "call", capability))
            raise error("agent.unavailable", f"no call of {capability} was recorded here", retryable=False)
        chosen = min(fitting, key=lambda call: bool(self._changes(call, arguments)))
        left.remove(chosen)
        changes = self._changes(chosen, arguments)
        verdict = Verdict.CHANGED if changes else Verdict.SAME
        self.made[cause.message_id].append(Compared(verdict, "call", capability, None, tuple(changes)))
        result = Result.from_payload(dict(chosen.result))
        result.unwrap()
        return result

    def stream(self, capability: str, *_: Any, **__: Any) -> Streamed:
        """Raises ToolError `agent.unavailable`: chunks are not recorded."""
        raise error("agent.unavailable", f"{capability}: a replay has no answer to streamed calls", retryable=False)

    async def submit(self, capability: str, *_: Any, **__: Any) -> Submitted:
        """Raises ToolError `agent.unavailable`: tasks are not recorded."""
        raise error("agent.unavailable", f"{capability}: a replay has no answer to tasks", retryable=False)

    def take(self, message_id: str) -> list[Compared]:
        """What was called while a message was handled, and what was not called again."""
        missing = [Compared(Verdict.MISSING, "call", call.capability) for call in self._left.pop(message_id, ())]
        return [*self.made.pop(message_id, ()), *missing]

    def _changes(self, call: RecordedCall, arguments: Any) -> list[Change]:
        return differences(call.arguments, arguments, self._ignore, "arguments")


class _Sent:
    """What the agent has sent in the replay, and how its messages ended: read as far as it goes."""

    def __init__(self, connection: Connection, agent: str) -> None:
        names, subjects = StreamNames.of(connection.settings.namespace), connection.subjects
        self._connection = connection
        self._agent = agent
        self._sources = {names.history: subjects.history_all, names.events: subjects.event_all}
        self._dead = names.dead, subjects.dead_all
        self._next: Counter[str] = Counter()
        self.by_cause: dict[str, list[Envelope]] = defaultdict(list)
        self.deaths: dict[str, str] = {}

    async def read(self) -> None:
        """Reads what has come since."""
        for stream, subject in self._sources.items():
            for data, _ in await self._new(stream, subject):
                envelope = Envelope.decode(data)
                if envelope.sender == self._agent and envelope.type != "error":
                    self.by_cause[envelope.causation_id or ""].append(envelope)
        for data, headers in await self._new(*self._dead):
            try:
                self.deaths[Envelope.decode(data).message_id] = headers.get("Bus-Dead-Code", "unknown")
            except Rejected:
                continue  # not one of ours: those can be read

    async def _new(self, stream: str, subject: str) -> list[tuple[bytes, Mapping[str, str]]]:
        found = []
        start = self._next[stream] + 1
        async with StreamReader(self._connection, stream, subjects=[subject], start_seq=start) as reader:
            async for delivery in reader.until_now():
                self._next[stream] = delivery.stream_seq
                found.append((delivery.data, delivery.headers))
        return found


class _Run:
    """One replay."""

    def __init__(self, recording: Recording, agent: str, bus: Bus, ignore: tuple[str, ...], timeout_s: float) -> None:
        self.calls = _Calls(recording, agent, ignore)
        self._recording = recording
        self._agent = agent
        self._bus = bus
        self._ignore = ignore
        self._timeout_s = timeout_s
        self._sent = _Sent(bus.connection, agent)
        # The recorded messages of the agent that it has sent again, and by which message.
        self._partners: dict[int, Envelope] = {}
        self._handlings: list[Handling] = []

    async def all(self) -> Comparison:
        """Feeds what can be fed, until nothing is left that something led to."""
        left = self._recording.inputs(self._agent)
        while (index := next((one for one in left if self._is_due(one)), None)) is not None:
            left.remove(index)
            await self._feed(self._recording.messages[index].envelope)
            await self._sent.read()
            self._compare(index)
        return Comparison(self._recording.workflow_id, self._agent, tuple(self._handlings), len(left))

    def _is_due(self, index: int) -> bool:
        origin = self._recording.origin(self._agent, index)
        return origin is None or origin in self._partners

    async def _feed(self, envelope: Envelope) -> None:
        extensions = {name: value for name, value in envelope.extensions.items() if name not in PASSED}
        envelope = envelope.replace(extensions=extensions)
        subject = self._bus.connection.subjects.work(self._agent, "normal", envelope.sender, envelope.type)
        headers = {"Nats-Msg-Id": dedupe_header(envelope.sender, envelope.message_id)}
        await store(self._bus.connection, subject, envelope.encode(), headers, timeout_s=STORE_S)
        await settled(self._bus, self._timeout_s, agents=[self._agent])

    def _compare(self, index: int) -> None:
        """Compares what the agent did about one message, and what it did about what it sent itself because of that."""
        open_ones = [(index, self._recording.messages[index].envelope)]
        while open_ones:
            recorded_at, envelope = open_ones.pop(0)
            was = self._recording.outputs(self._agent, recorded_at)
            now = self._sent.by_cause.pop(envelope.message_id, [])
            deeds = [self._outcome(recorded_at, envelope), *self.calls.take(envelope.message_id)]
            for one, other in pair([self._recording.messages[place].envelope for place in was], now):
                recorded = None if one is None else self._recording.messages[was[one]].envelope
                again = None if other is None else now[other]
                led_to = 0 if one is None or again is not None else self._led_to(was[one])
                deeds.append(compared(recorded, again, ignore=self._ignore, led_to=led_to))
                if one is not None and again is not None:
                    self._partners[was[one]] = again
                    if again.to == self._agent:
                        open_ones.append((was[one], again))
            said = tuple(one for one in deeds if one is not None)
            self._handlings.append(Handling(envelope.type, envelope.sender, envelope.message_id, said))

    def _outcome(self, index: int, envelope: Envelope) -> Compared:
        before = self._recording.messages[index].outcome
        after = self._sent.deaths.get(envelope.message_id, "handled")
        if before == after:
            return Compared(Verdict.SAME, "outcome", after, envelope.phase)
        return Compared(Verdict.CHANGED, "outcome", after, envelope.phase, (Change("outcome", before, after),))

    def _led_to(self, index: int) -> int:
        led: set[int] = {index}
        for place, one in enumerate(self._recording.messages):
            if one.cause in led:
                led.add(place)
        return len(led) - 1
