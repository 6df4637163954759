"""Impact: which live agents a new version of a contract would break, before it is published (SCH-5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bus.broker.connection import Connection
from bus.contracts.version import ContractVersion
from bus.registry.readers import ANSWER_S, Reader, readers_of

Schema = Mapping[str, Any] | bool
Judge = Callable[[Schema, Schema], Sequence[str]]
"""What breaks when a reader of the first schema gets what a writer of the second writes, one line each."""

_SILENT = "it has run here, and no replica of it answers now; start it, or compare with its contract in the catalogue"


class Effect(StrEnum):
    """What a new contract does to an agent."""

    BREAKS = "breaks"
    SAFE = "safe"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Impact:
    """What becomes of one agent, or of those of its replicas that read alike.

    `reads` is the contract of their model (`draft_request@2.1`), None when they do not say; `reasons` say why, one line
    each, and are empty for a safe one. `replicas` is 0 for an agent that could not be asked.
    """

    agent: str
    effect: Effect
    replicas: int
    reads: str | None
    reasons: tuple[str, ...] = ()


async def impact(
    connection: Connection,
    type: str,
    new: Schema,
    judge: Judge,
    *,
    version: ContractVersion | None = None,
    timeout_s: float = ANSWER_S,
) -> list[Impact]:
    """What a new schema of a message type would do to the agents that live now; the worst first.

    `version` is the one that it is going to have; without it, it is taken for a new minor of what each agent reads.
    Agents that live and do not handle the type are left out. Raises BrokerError.
    """
    readers = await readers_of(connection, type, timeout_s=timeout_s)
    found = [effect_on(reader, new, judge, version) for reader in readers.found]
    found += [Impact(agent, Effect.UNKNOWN, 0, None, (_SILENT,)) for agent in readers.silent]
    worst_first = [Effect.BREAKS, Effect.UNKNOWN, Effect.SAFE]
    return sorted(found, key=lambda one: (worst_first.index(one.effect), one.agent, one.reads or ""))


def effect_on(reader: Reader, new: Schema, judge: Judge, version: ContractVersion | None = None) -> Impact:
    """What a new schema does to one reader."""

    def becomes(effect: Effect, *reasons: str) -> Impact:
        return Impact(reader.agent, effect, len(reader.replicas), reader.schema, reasons)

    if version is not None and reader.majors is not None and version.major not in reader.majors:
        accepted = ", ".join(map(str, reader.majors))
        return becomes(Effect.BREAKS, f"it accepts majors {accepted}, not {version}: every message is a dead letter")
    if version is not None and reader.majors is not None and version.major != max(reader.majors):
        return becomes(Effect.UNKNOWN, f"its upcasters read major {version.major}; test them with golden samples")
    if reader.json_schema is None:
        return becomes(Effect.UNKNOWN, "its handler names no model, so it takes any JSON; ask who wrote it")
    reasons = judge(reader.json_schema, new)
    return becomes(Effect.BREAKS, *reasons) if reasons else becomes(Effect.SAFE)
