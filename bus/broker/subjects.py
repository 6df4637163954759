"""Subjects: the only place that spells them (wire specification, section Subjects)."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from bus.errors import error

LANES = ("high", "normal", "low")
BROADCAST = "*"

_PUBLISHABLE = re.compile(r"[^\s*>.]+")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


def token(text: str) -> str:
    """Any text as one subject token: letters, digits, `_` and `-` stay, every other byte becomes `=XX`."""
    return _UNSAFE.sub(lambda found: "".join(f"={byte:02X}" for byte in found[0].encode()), text) or "="


class WorkSubject(NamedTuple):
    """The four tokens that a work subject carries."""

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

    def done(self, agent: str) -> str:
        """Completions of one agent."""
        return f"{self._prefix}.done.{agent}"

    @property
    def done_all(self) -> str:
        """Completions of all agents."""
        return f"{self._prefix}.done.*"

    def _parse_work(self, subject: str) -> WorkSubject:
        """The tokens of a work subject.

        Raises Rejected `protocol.malformed` when it is not one: a stranger may publish to any depth below
        an agent's prefix.
        """
        tokens = subject.split(".")
        if len(tokens) != 7 or not subject.startswith(f"{self._prefix}.work."):
            raise error(
                "protocol.malformed",
                f"the subject {subject!r} is not {self._prefix}.work.<to>.<lane>.<from>.<type>",
                path="subject",
            )
        return WorkSubject(*tokens[3:])
