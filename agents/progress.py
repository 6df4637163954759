"""How far a brief is, told from the messages of its workflow; pure, so that the views have nothing to work out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bus.envelope import Envelope

PHASES = ("plan", "execute", "review", "revision")
SHOWN_CHARS = 90


@dataclass(frozen=True, slots=True)
class PhaseState:
    """One phase: how many steps are done, of how many known so far."""

    done: int
    total: int

    @property
    def is_done(self) -> bool:
        """Whether nothing of it is known to be left."""
        return self.total > 0 and self.done >= self.total


class Progress:
    """Counts what passes. Messages may come twice or in any order; each counts once."""

    def __init__(self) -> None:
        self._seen: dict[str, set[tuple[int, int]]] = {}
        self._over = False

    def see(self, envelope: Envelope) -> str | None:
        """Counts a message; returns one line about it for a person, or nothing for one that tells nothing new."""
        payload = envelope.payload if isinstance(envelope.payload, dict) else {}
        key = _key(envelope.type, payload)
        seen = self._seen.setdefault(envelope.type, set())
        if key in seen:
            return None
        seen.add(key)
        self._over |= envelope.type in ("brief_ready", "brief_failed")
        return _line(envelope.type, key, payload)

    def phases(self) -> dict[str, PhaseState]:
        """The state of each phase, in their order."""
        asked = self._of("draft_request")
        drafts = self._of("review_request")
        sent_back = self._of("agent_message")
        plans = len(self._of("plan_request"))
        planned = plans if asked or self._over else 0
        # A draft is read once a later round of its section is asked for, or all is over.
        read = drafts if self._over else {(number - 1, index) for number, index in sent_back} & drafts
        return {
            "plan": PhaseState(planned, plans),
            "execute": PhaseState(len({key for key in drafts if key[0] == 0}), len(asked)),
            "review": PhaseState(len(read), len(drafts)),
            "revision": PhaseState(len(drafts & sent_back), len(sent_back)),
        }

    def _of(self, type: str) -> set[tuple[int, int]]:
        return self._seen.get(type, set())


def _key(type: str, payload: dict[str, Any]) -> tuple[int, int]:
    holder = payload.get("theme", {}) if type == "draft_request" else payload
    number, index = payload.get("round", 0), holder.get("index", 0)
    return (number if isinstance(number, int) else 0, index if isinstance(index, int) else 0)


def _line(type: str, key: tuple[int, int], payload: dict[str, Any]) -> str | None:
    number, index = key
    section = f"section {index + 1}"
    if type == "plan_request":
        return f"plan      {counted(len(payload.get('sources', [])), 'source')}"
    if type == "draft_request":
        return f"execute   {section}: {_short(payload.get('theme', {}).get('question', ''))}"
    if type == "review_request":
        again = f", revision {number}" if number else ""
        return f"review    {section}{again}: {counted(len(payload.get('sentences', [])), 'sentence')}"
    if type == "agent_message":
        problems = payload.get("problems") or [{}]
        return f"revision  {section}: {payload.get('reason', '')}: {_short(problems[0].get('detail', ''))}"
    if type == "brief_ready":
        return f"done      {counted(len(payload.get('sections', [])), 'section')}"
    return None


def counted(count: int, what: str) -> str:
    """`1 source`, `2 sources`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _short(text: object) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= SHOWN_CHARS else f"{line[: SHOWN_CHARS - 1]}…"
