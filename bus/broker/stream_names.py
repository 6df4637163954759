"""The names of the streams and buckets of one bus."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamNames:
    """Names of the streams and buckets of one bus; the namespace keeps several buses apart."""

    work: str
    later: str
    history: str
    events: str
    streams: str
    dead: str
    held: str
    done: str
    audit: str
    workflows: str
    artifacts: str
    registry: str
    results: str
    tasks: str
    contracts: str
    confirmations: str

    @classmethod
    def of(cls, namespace: str) -> StreamNames:
        """The names for one namespace: `BUS_WORK` and so on for the namespace `bus`."""
        upper, lower = namespace.upper(), namespace
        return cls(
            work=f"{upper}_WORK",
            later=f"{upper}_LATER",
            history=f"{upper}_HISTORY",
            events=f"{upper}_EVENTS",
            streams=f"{upper}_STREAMS",
            dead=f"{upper}_DEAD",
            held=f"{upper}_HELD",
            done=f"{upper}_DONE",
            audit=f"{upper}_AUDIT",
            workflows=f"{lower}_workflows",
            artifacts=f"{lower}_artifacts",
            registry=f"{lower}_registry",
            results=f"{lower}_results",
            tasks=f"{lower}_tasks",
            contracts=f"{lower}_contracts",
            confirmations=f"{lower}_confirmations",
        )
