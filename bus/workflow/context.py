"""Context: what the agents of one workflow share beside their messages (WF-4).

Instructions, a memory of bounded size, and artifacts by reference. Each part is a document of its own, so an agent
reads only the parts that it asks for. Every entry keeps the labels of where it comes from, and reading it passes them
on to what the reader sends (SEC-4).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from bus.envelope import timestamps
from bus.errors import BusError, error
from bus.workflow.artifacts import ArtifactRef
from bus.workflow.state import Document, WorkflowState

FAMILY = "context"
INSTRUCTIONS, MEMORY, ARTIFACTS = "system_instructions", "working_memory", "artifacts"
MAX_SUMMARIES = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing remembered: the text, who wrote it when, and where it comes from. `key` tells two of them apart."""

    text: str
    by: str
    at: str
    key: str
    labels: tuple[str, ...] = ()

    @classmethod
    def of(cls, document: Document) -> Entry:
        """As it is stored."""
        return cls(**{**document, "labels": tuple(document["labels"])})


Summarise = Callable[[Sequence[Entry]], Awaitable[str]]
"""Makes one short text of what is remembered; awaited when the memory is full."""


@dataclass(frozen=True, slots=True)
class Attached:
    """An artifact of the workflow."""

    artifact: ArtifactRef
    by: str
    labels: tuple[str, ...] = ()


class Context:
    """The context of one workflow, as one agent sees it. Every call raises BrokerError when the broker cannot answer.

    `next_key` gives the keys of entries, the same in a second run of a handler; `labels` are those of what it has in
    hand, and `heard` is told those of what it reads.
    """

    __slots__ = ("_agent", "_heard", "_labels", "_limit_bytes", "_next_key", "_state")

    def __init__(
        self,
        state: WorkflowState,
        *,
        agent: str,
        limit_bytes: int,
        next_key: Callable[[str], str],
        labels: Callable[[], Iterable[str]],
        heard: Callable[..., None],
    ) -> None:
        self._state = state
        self._agent = agent
        self._limit_bytes = limit_bytes
        self._next_key = next_key
        self._labels = labels
        self._heard = heard

    async def instructions(self) -> str:
        """The instructions for every agent of the workflow; empty when there are none."""
        found = await self._state.read(INSTRUCTIONS)
        self._hear([found] if found else [])
        return "" if found is None else str(found["text"])

    async def instruct(self, text: str, *, labels: Iterable[str] = ()) -> None:
        """Replaces the instructions. Raises Rejected `protocol.too_large` over the limit of the memory."""
        entry = self._entry(text, labels)
        if (size := _size(entry)) > self._limit_bytes:
            raise self._too_large(INSTRUCTIONS, size)
        await self._state.update(INSTRUCTIONS, lambda _: _stored(entry))

    async def memory(self) -> list[Entry]:
        """What is remembered, oldest first; the first may be a summary of what was before it."""
        found = (await self._state.read(MEMORY) or {"entries": []})["entries"]
        self._hear(found)
        return [Entry.of(one) for one in found]

    async def remember(
        self, text: str, *, labels: Iterable[str] = (), key: str | None = None, summarise: Summarise | None = None
    ) -> None:
        """Adds to the memory. The same entry of a handler that runs again counts once.

        When the memory would be larger than the setting `memory_limit`, `summarise` makes one text of all that was
        remembered before, which takes its place. Raises Rejected `protocol.too_large` without it, and when that is not
        enough.
        """
        entry = self._entry(text, labels, key)
        of: list[Document] = []
        summary: Entry | None = None

        def added(document: Document | None) -> Document:
            before = (document or {"entries": []})["entries"]
            if any(one["key"] == entry.key for one in before):
                return {"entries": before}
            # What came since the summary was made stays beside it.
            old = [_stored(summary), *before[len(of) :]] if summary is not None and before[: len(of)] == of else before
            entries = [*old, _stored(entry)]
            if (size := len(orjson.dumps(entries))) > self._limit_bytes:
                raise _FullError(before, size)
            return {"entries": entries}

        for _ in range(MAX_SUMMARIES):
            try:
                await self._state.update(MEMORY, added)
                return
            except _FullError as full:
                if summarise is None or not full.entries:
                    raise self._too_large(MEMORY, full.size_bytes) from None
                of = full.entries
                summary = await self._summary([Entry.of(one) for one in of], summarise)
        raise self._too_large(MEMORY, _size(entry))

    async def artifacts(self) -> dict[str, Attached]:
        """The artifacts by their name."""
        found = await self._state.read(ARTIFACTS) or {}
        self._hear(found.values())
        return {
            name: Attached(ArtifactRef(**one["artifact"]), one["by"], tuple(one["labels"]))
            for name, one in found.items()
        }

    async def attach(self, artifact: ArtifactRef, *, labels: Iterable[str] = ()) -> None:
        """Adds an artifact under its name, in place of an older one of that name."""
        attached = {"artifact": asdict(artifact), "by": self._agent, "labels": list(self._joined(labels))}
        await self._state.update(ARTIFACTS, lambda found: {**(found or {}), artifact.name: attached})

    async def _summary(self, entries: list[Entry], summarise: Summarise) -> Entry:
        labels = dict.fromkeys(label for entry in entries for label in entry.labels)
        return Entry(await summarise(entries), self._agent, timestamps.now(), entries[-1].key, tuple(labels))

    def _entry(self, text: str, labels: Iterable[str], key: str | None = None) -> Entry:
        return Entry(text, self._agent, timestamps.now(), key or self._next_key("remember"), self._joined(labels))

    def _joined(self, labels: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self._labels(), *labels]))

    def _hear(self, documents: Iterable[Any]) -> None:
        for one in documents:
            self._heard(*one["labels"])

    def _too_large(self, part: str, size_bytes: int) -> BusError:
        return error(
            "protocol.too_large",
            f"{part} would have {size_bytes} bytes, its limit is {self._limit_bytes}; shorten it, or give `summarise`",
            limit=self._limit_bytes,
            size=size_bytes,
        )


class _FullError(Exception):
    """The memory has no room; what was in it."""

    def __init__(self, entries: list[Document], size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.entries = entries
        self.size_bytes = size_bytes


def _stored(entry: Entry) -> Document:
    return {**asdict(entry), "labels": list(entry.labels)}


def _size(entry: Entry) -> int:
    return len(orjson.dumps(_stored(entry)))
