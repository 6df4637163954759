"""Subjects: the only place that spells them (wire specification, section Subjects)."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import NamedTuple

from bus.errors import error

LANES = ("high", "normal", "low")
KEY_LANES = 16
DUE = "due"
TASK = "task"
BROADCAST = "*"

_PUBLISHABLE = re.compile(r"[^\s*>.]+")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


def token(text: str) -> str:
    """Any text as one subject token: letters, digits, `_` and `-` stay, every other byte becomes `=XX`."""
    return _UNSAFE.sub(lambda found: "".join(f"={byte:02X}" for byte in found[0].encode()), text) or "="


@lru_cache(maxsize=4096)
def key_lane(partition_key: str) -> str:
    """The lane of a partition key: the first byte of the key's SHA-256, modulo 16, as `key-00` to `key-15`."""
    return f"key-{hashlib.sha256(partition_key.encode('utf-8', 'surrogatepass')).digest()[0] % KEY_LANES:02d}"


def is_key_lane(lane: str) -> bool:
    """Whether a lane keeps order."""
    return lane.startswith("key-")


def micro(verb: str, service: str, instance: str) -> tuple[str, str, str]:
    """Where an instance of a NATS micro service answers a question to all, to its service, and to itself alone.

    They have no namespace: every service of a NATS account answers there.
    """
    return f"$SRV.{verb}", f"$SRV.{verb}.{service}", f"$SRV.{verb}.{service}.{instance}"


class WorkSubject(NamedTuple):
    """The four tokens that a subject carries. A due message has the lane `due`, a broadcast `*` as `to` and lane."""

    to: str
    lane: str
    sender: str
    type: str


class Subjects:
    """The subjects of one bus. `namespace` lets several buses share a cluster."""

    __slots__ = ("_prefix", "parse_work")

    def __init__(self, namespace: str) -> None:
        self._prefix = f"{namespace}.v1"
        # A bus has few subjects and many messages; what does not parse raises and is not kept.
        self.parse_work = lru_cache(maxsize=4096)(self._parse_work)

    def work(self, to: str, lane: str, sender: str, type: str) -> str:
        """One durable message to one agent."""
        return f"{self._prefix}.work.{to}.{lane}.{sender}.{type}"

    def work_of(self, agent: str) -> str:
        """Everything that waits for one agent."""
        return f"{self._prefix}.work.{agent}.>"

    def is_work_of(self, agent: str, subject: str) -> bool:
        """Whether it is one of an agent's work subjects, of any depth, and fit to publish to."""
        first = f"{self._prefix}.work.{agent}."
        tokens = subject.removeprefix(first).split(".")
        return subject.startswith(first) and all(map(_PUBLISHABLE.fullmatch, tokens))

    def again(self, agent: str, subject: str) -> str | None:
        """Where a message of an agent is sent again: its own work subject, the one it would have had for a due one.

        None for what is no work of this agent: a broadcast, or a stranger's subject.
        """
        if subject.startswith(f"{self._prefix}.due.{agent}."):
            to, _, sender, type = self.parse_work(subject)
            return self.work(to, "normal", sender, type)
        return subject if self.is_work_of(agent, subject) else None

    def work_lane(self, agent: str, lane: str) -> str:
        """What waits for one agent on one lane."""
        return f"{self._prefix}.work.{agent}.{lane}.>"

    def later(self, to: str, sender: str, type: str, message_id: str) -> str:
        """One message whose time has not come. The last token stands for sender and id: sent again, it is replaced."""
        identity = hashlib.sha256(f"{sender}\0{message_id}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return f"{self._prefix}.later.{to}.{sender}.{type}.{identity}"

    @property
    def later_all(self) -> str:
        """All messages whose time has not come."""
        return f"{self._prefix}.later.>"

    def due(self, to: str, sender: str, type: str) -> str:
        """One delayed message whose time has come."""
        return f"{self._prefix}.due.{to}.{sender}.{type}"

    def due_of(self, agent: str) -> str:
        """The delayed messages of one agent whose time has come."""
        return f"{self._prefix}.due.{agent}.>"

    @property
    def due_all(self) -> str:
        """All delayed messages whose time has come."""
        return f"{self._prefix}.due.>"

    def call(self, agent: str, sender: str, capability: str) -> str:
        """One call of a capability; its dots separate tokens, so that permissions can name a whole family."""
        return f"{self._prefix}.call.{agent}.{sender}.{capability}"

    def calls_of(self, agent: str) -> str:
        """All calls to one agent."""
        return f"{self._prefix}.call.{agent}.>"

    def parse_call(self, subject: str) -> tuple[str, str]:
        """The sender and the capability of a call's subject. Raises Rejected `protocol.malformed`."""
        tokens = subject.split(".", 5)
        if len(tokens) != 6 or not subject.startswith(f"{self._prefix}.call."):
            raise error("protocol.malformed", f"{subject!r} is not the subject of a call", path="subject")
        return tokens[4], tokens[5]

    def control(self, agent: str, instance: str, sender: str) -> str:
        """A word about calls in hand to one replica, or with the instance `all` to every one."""
        return f"{self._prefix}.control.{agent}.{instance}.{sender}"

    def stream(self, agent: str, call_id: str) -> str:
        """What an agent tells while it works at one call."""
        return f"{self._prefix}.stream.{agent}.{token(call_id)}"

    def stream_of(self, call_id: str) -> str:
        """What is told about one call, by whichever agent has it."""
        return f"{self._prefix}.stream.*.{token(call_id)}"

    @property
    def stream_all(self) -> str:
        """What is told about all calls."""
        return f"{self._prefix}.stream.>"

    def task(self, task_id: str) -> str:
        """A word without content: the record of this task has changed."""
        return f"{self._prefix}.task.{token(task_id)}"

    @property
    def due_to_history(self) -> tuple[str, str]:
        """From and to: a due message is copied into the history under the lane `due`."""
        tokens = "{{wildcard(1)}}.due.{{wildcard(2)}}.{{wildcard(3)}}"
        return f"{self._prefix}.due.*.*.*", f"{self._prefix}.history.{tokens}"

    @property
    def work_all(self) -> str:
        """All durable messages."""
        return f"{self._prefix}.work.>"

    @property
    def history_all(self) -> str:
        """The copy of all durable messages that the server keeps for reading."""
        return f"{self._prefix}.history.>"

    def history_of(self, agent: str) -> str:
        """The history of what was sent to one agent."""
        return f"{self._prefix}.history.{agent}.>"

    def history_lane(self, agent: str, lane: str) -> str:
        """The history of what was sent to one agent on one lane."""
        return f"{self._prefix}.history.{agent}.{lane}.>"

    def events_of(self, type: str) -> str:
        """The broadcasts of one type."""
        return f"{self._prefix}.event.*.*.{type}"

    def events_from(self, agent: str) -> str:
        """How the subjects of one agent's broadcasts begin."""
        return f"{self._prefix}.event.{agent}."

    def event(self, sender: str, workflow_id: str | None, type: str) -> str:
        """One broadcast. Messages outside a workflow have `-` as workflow token."""
        return f"{self._prefix}.event.{sender}.{token(workflow_id) if workflow_id else '-'}.{type}"

    @property
    def event_all(self) -> str:
        """All broadcasts."""
        return f"{self._prefix}.event.>"

    def dead(self, agent: str, code: str) -> str:
        """Dead letters of one agent for one error code (its dot becomes a dash)."""
        return f"{self._prefix}.dead.{agent}.{code.replace('.', '-')}"

    @property
    def dead_all(self) -> str:
        """All dead letters."""
        return f"{self._prefix}.dead.>"

    def is_dead(self, subject: str) -> bool:
        """Whether it is a dead letter's."""
        return subject.startswith(f"{self._prefix}.dead.") and subject.count(".") == 4

    def held(self, agent: str, workflow: str, lane: str, why: str) -> str:
        """Messages that were parked; `workflow` and `why` are tokens, and any of the four may be `*`."""
        return f"{self._prefix}.held.{agent}.{workflow}.{lane}.{why}"

    @property
    def held_all(self) -> str:
        """All messages that were parked."""
        return f"{self._prefix}.held.>"

    def answered(self, confirmation: str) -> str:
        """Where is said that a person has answered a confirmation."""
        return f"{self._prefix}.answered.{confirmation}"

    def done(self, agent: str) -> str:
        """Completions of one agent."""
        return f"{self._prefix}.done.{agent}"

    def claims(self, agent: str) -> str:
        """Where the replicas of one agent ask each other what they have in hand."""
        return f"{self._prefix}.claims.{agent}"

    @property
    def done_all(self) -> str:
        """Completions of all agents."""
        return f"{self._prefix}.done.*"

    @property
    def span_status(self) -> str:
        """The question, to everybody, what became of their spans."""
        return f"{self._prefix}.status.spans"

    @property
    def rules_status(self) -> str:
        """The question, to everybody, which rules are in force there."""
        return f"{self._prefix}.status.rules"

    def audit(self, writer: str) -> str:
        """What one agent or client writes about calls; it is the writer whom permissions can hold to its name."""
        return f"{self._prefix}.audit.{writer}"

    @property
    def audit_all(self) -> str:
        """All records of calls."""
        return f"{self._prefix}.audit.*"

    def contracts(self, agent: str) -> str:
        """Where every replica of an agent answers what it reads (wire specification, section Versions of payloads)."""
        return f"{self._prefix}.contracts.{agent}"

    def _parse_work(self, subject: str) -> WorkSubject:
        """The tokens of a work subject, of a due one, or of a broadcast.

        Raises Rejected `protocol.malformed` when it is none of them: a stranger may publish to any depth below
        an agent's prefix.
        """
        tokens = subject.split(".")
        if len(tokens) == 6 and subject.startswith(f"{self._prefix}.due."):
            return WorkSubject(tokens[3], DUE, tokens[4], tokens[5])
        if len(tokens) == 6 and subject.startswith(f"{self._prefix}.event."):
            return WorkSubject(BROADCAST, BROADCAST, tokens[3], tokens[5])
        if len(tokens) != 7 or not subject.startswith(f"{self._prefix}.work."):
            raise error(
                "protocol.malformed",
                f"the subject {subject!r} is not {self._prefix}.work.<to>.<lane>.<from>.<type>",
                path="subject",
            )
        return WorkSubject(*tokens[3:])
