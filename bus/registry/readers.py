"""Readers: which live agents read a message type, each with its own word, and who could not be asked (SCH-5)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from bus.broker.connection import Connection
from bus.broker.questions import ask_all
from bus.broker.records import DELETED
from bus.broker.survey import agents_with_consumer
from bus.contracts.accepts import Accepts
from bus.registry.lease import EVERY, owner, registry_of

ANSWER_S = 2.0


@dataclass(frozen=True, slots=True)
class Reader:
    """Replicas of one agent that read a type alike.

    `schema` is the contract of their model (`draft_request@2.1`), `majors` what they accept (None: anything),
    `json_schema` how the model reads (None: they take any JSON, or cannot say).
    """

    agent: str
    replicas: tuple[str, ...]
    schema: str | None
    majors: tuple[int, ...] | None
    json_schema: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Readers:
    """What was found out: who reads the type, who lives and does not, and who is known but silent."""

    found: tuple[Reader, ...]
    others: tuple[str, ...]
    silent: tuple[str, ...]


async def readers_of(connection: Connection, type: str, *, timeout_s: float = ANSWER_S) -> Readers:
    """Asks every agent that lives or ever ran here how it reads a message type; all at once, within `timeout_s`.

    It ends as soon as every replica with a lease has answered, and every other agent too or has nobody to. An agent is
    silent when it has run here and none of its replicas answers, or when one with a lease does not. Raises BrokerError.
    """
    live = await live_replicas(connection)
    known = await agents_with_consumer(connection) | live.keys()
    answers = await _ask(connection, type, live, known, timeout_s)
    groups: dict[tuple[str, bytes], list[str]] = {}
    content: dict[tuple[str, bytes], dict[str, Any]] = {}
    others: set[str] = set()
    for (agent, replica), answer in sorted(answers.items()):
        if "handles" in answer:
            others.add(agent)
            continue
        read = {name: answer.get(name) for name in ("schema", "majors", "json_schema")}
        key = agent, orjson.dumps(read, option=orjson.OPT_SORT_KEYS)
        groups.setdefault(key, []).append(replica)
        content[key] = read
    found = [_reader(agent, replicas, content[agent, read]) for (agent, read), replicas in groups.items()]
    answered = {agent for agent, _ in answers}
    late = {agent for agent, replicas in live.items() for replica in replicas if (agent, replica) not in answers}
    silent = (known - answered) | late
    return Readers(tuple(found), tuple(sorted(others)), tuple(sorted(silent)))


def _reader(agent: str, replicas: list[str], read: dict[str, Any]) -> Reader:
    majors, schema = read["majors"], read["json_schema"]
    return Reader(
        agent,
        tuple(replicas),
        read["schema"] if isinstance(read["schema"], str) else None,
        tuple(n for n in majors if isinstance(n, int)) if isinstance(majors, list) else None,
        schema if isinstance(schema, dict) else None,
    )


async def live_replicas(connection: Connection) -> dict[str, dict[str, Accepts]]:
    """What each replica with a lease accepts, by agent and replica. Raises BrokerError."""
    leases = registry_of(connection)
    live: dict[str, dict[str, Accepts]] = {}
    async with leases.reader(EVERY) as reader:
        async for delivery in reader.until_now():
            agent, replica = owner(leases.key(delivery))
            replicas = live.setdefault(agent, {})
            replicas.pop(replica, None)
            if DELETED not in delivery.headers:
                replicas[replica] = _accepts(delivery.data)
    return {agent: replicas for agent, replicas in live.items() if replicas}


def _accepts(record: bytes) -> Accepts:
    try:
        read = orjson.loads(record)
    except orjson.JSONDecodeError:
        read = None
    return Accepts.from_wire(read.get("accepts") if isinstance(read, dict) else None)


async def _ask(
    connection: Connection, type: str, live: Mapping[str, Collection[str]], known: frozenset[str], timeout_s: float
) -> dict[tuple[str, str], dict[str, Any]]:
    awaited = {(agent, replica) for agent, replicas in live.items() for replica in replicas}
    answers: dict[tuple[str, str], dict[str, Any]] = {}
    nobody = 0

    def take(data: bytes) -> bool:
        nonlocal nobody
        if not data:
            nobody += 1
        else:
            try:
                answer = orjson.loads(data)
                who = str(answer["agent"]), str(answer["replica"])
                if who[0] in known and answer["type"] == type:
                    answers[who] = answer
            except (ValueError, KeyError, TypeError):
                return False  # a stranger
        # One without a lease, because its bucket was away, answers as well: every agent is heard or known to be gone.
        return awaited <= answers.keys() and len({agent for agent, _ in answers}) + nobody >= len(known)

    if known:
        subjects = [connection.subjects.contracts(agent) for agent in sorted(known)]
        await ask_all(connection, subjects, orjson.dumps({"type": type}), take, timeout_s=timeout_s)
    return answers
