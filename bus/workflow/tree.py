"""The causal tree of a workflow: which message caused which, how long each waited and worked."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from bus.broker.connection import Connection
from bus.broker.reader import StreamReader
from bus.broker.streams import StreamNames
from bus.envelope import Envelope
from bus.workflow import completions
from bus.workflow.sightings import sightings

CLOCK_MARGIN = timedelta(minutes=2)
EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class Work:
    """How a message was handled. Times are the handling agent's."""

    started_at: datetime
    exec_ms: float
    attempt: int


@dataclass(slots=True)
class Node:
    """One message of the tree."""

    envelope: Envelope
    kind: str
    stored_at: datetime
    work: Work | None = None
    dead_code: str | None = None
    dead_id: int | None = None
    children: list[Node] = field(default_factory=list)

    @property
    def waited_ms(self) -> float | None:
        """Time between its storing and the start of its handling; clocks that disagree count as 0."""
        if self.work is None:
            return None
        return max(0.0, (self.work.started_at - self.stored_at).total_seconds() * 1000)

    def outcome(self) -> str:
        """What became of it, in words."""
        if self.dead_id is not None:
            return f"dead letter {self.dead_id}: {self.dead_code}"
        if self.kind == "event":
            return "broadcast"
        if self.work is None:
            return "waiting"
        attempts = f", attempt {self.work.attempt}" if self.work.attempt > 1 else ""
        return f"waited {_duration(self.waited_ms or 0)}, worked {_duration(self.work.exec_ms)}{attempts}"


@dataclass(frozen=True, slots=True)
class Tree:
    """All messages of one workflow; `roots` were caused by nothing that is known."""

    workflow_id: str
    roots: list[Node]

    def nodes(self) -> Iterator[Node]:
        """Every message, parents before children."""
        waiting = list(reversed(self.roots))
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))

    def lines(self) -> list[str]:
        """The tree as text, one line a message."""
        nodes = list(self.nodes())
        if not nodes:
            return [f"workflow {self.workflow_id}: no messages are known"]
        first = min(node.stored_at for node in nodes)
        last = max(
            node.stored_at if node.work is None else node.work.started_at + timedelta(milliseconds=node.work.exec_ms)
            for node in nodes
        )
        span_ms = (last - first).total_seconds() * 1000
        count = f"{len(nodes)} message{'s' if len(nodes) != 1 else ''}"
        lines = [f"workflow {self.workflow_id}: {count} in {_duration(span_ms)}"]
        rows = [(prefix + _arrow(node), node) for prefix, node in _drawn(self.roots, "")]
        width = min(72, max(len(left) for left, _ in rows))
        for left, node in rows:
            phase = (node.envelope.phase or "")[:10]
            lines.append(f"{left:<{width}}  {phase:<10}  {node.outcome()}")
        return lines


async def read_tree(connection: Connection, workflow_id: str) -> Tree:
    """Reads a workflow's messages, completions and dead letters from the streams. Raises BrokerError."""
    since = _begin(workflow_id)
    nodes: dict[tuple[str, str], Node] = {}
    dead: list[tuple[Envelope, str, int]] = []
    async for seen in sightings(connection, workflow_id=workflow_id, agent=None, type=None, since=since, follow=False):
        if seen.envelope is None:
            continue
        if seen.kind == "dead":
            dead.append((seen.envelope, seen.headers.get("Bus-Dead-Code", ""), seen.seq))
        else:
            key = (seen.envelope.sender, seen.envelope.message_id)
            nodes.setdefault(key, Node(seen.envelope, seen.kind, seen.stored_at))
    for envelope, code, id in dead:
        if (node := nodes.get((envelope.sender, envelope.message_id))) is not None:
            node.dead_code, node.dead_id = code, id
    await _add_work(connection, workflow_id, since, nodes)
    return Tree(workflow_id, _link(list(nodes.values())))


async def _add_work(
    connection: Connection, workflow_id: str, since: datetime, nodes: dict[tuple[str, str], Node]
) -> None:
    stream = StreamNames.of(connection.settings.namespace).done
    async with StreamReader(connection, stream, start_time=since) as reader:
        async for delivery in reader.until_now():
            with contextlib.suppress(ValueError):
                for one in completions.decode(delivery.data):
                    node = nodes.get((one.sender, one.message_id))
                    if node is not None and one.workflow_id == workflow_id:
                        node.work = Work(one.started_at, one.exec_ms, one.attempt)


def _begin(workflow_id: str) -> datetime:
    """The time in a UUIDv7, less a margin for clocks that differ; the beginning of time for other ids."""
    try:
        parsed = uuid.UUID(workflow_id)
    except ValueError:
        return EPOCH
    if parsed.version != 7:
        return EPOCH
    return datetime.fromtimestamp((parsed.int >> 80) / 1000, UTC) - CLOCK_MARGIN


def _link(nodes: list[Node]) -> list[Node]:
    by_id = {node.envelope.message_id: node for node in nodes}
    in_order = sorted(nodes, key=lambda one: one.stored_at)
    cut = _circles(in_order, by_id)
    roots = []
    for node in in_order:
        parent = by_id.get(node.envelope.causation_id or "")
        if parent is None or id(node) in cut:
            roots.append(node)
        else:
            parent.children.append(node)
    return roots


def _circles(nodes: list[Node], by_id: dict[str, Node]) -> set[int]:
    """Where to cut circles of causes, which foreign messages may claim and which must not become endless trees."""
    cut: set[int] = set()
    settled: set[int] = set()
    for node in nodes:
        path: set[int] = set()
        current: Node | None = node
        while current is not None and id(current) not in settled:
            if id(current) in path:
                cut.add(id(current))
                break
            path.add(id(current))
            current = by_id.get(current.envelope.causation_id or "")
        settled |= path
    return cut


def _drawn(nodes: list[Node], indent: str) -> Iterator[tuple[str, Node]]:
    stack = [(indent, "", node) for node in reversed(nodes)]
    while stack:
        above, joint, node = stack.pop()
        yield above + joint, node
        below = above + {"": "", "├─ ": "│  ", "└─ ": "   "}[joint]
        last = len(node.children) - 1
        stack += [
            (below, "└─ " if index == last else "├─ ", child)
            for index, child in reversed(list(enumerate(node.children)))
        ]


def _arrow(node: Node) -> str:
    return f"{node.envelope.type}  {node.envelope.sender} > {node.envelope.to}"


def _duration(ms: float) -> str:
    if ms < 10:
        return f"{ms:.1f} ms"
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.2f} s"
