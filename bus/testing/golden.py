"""Golden samples: one payload or more of every version, which the chain of upcasters must bring to the newest model."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from bus.agent import Agent
from bus.contracts.version import ContractVersion
from bus.delivery.handler import Handler
from bus.errors import Rejected


def check_chain(agent: Agent, type: str, samples: Mapping[str, Iterable[Any]]) -> dict[str, list[Any]]:
    """Reads golden samples as the agent would; returns what its handler would get, by version.

    `samples` has payloads by version, `{"1.0": [...], "2.1": [...]}`; every major that the agent accepts needs one.
    Each must be accepted, give the same again when it is read again, stay unchanged itself, and become JSON. Raises
    AssertionError with everything that is wrong at once, one line each; ValueError for upcasters that lead nowhere,
    and for a type without a handler that says its version.
    """
    handler = agent.compiled().get(type)
    if handler is None or handler.chain is None:
        raise ValueError(f"{agent.name} has no handler for {type!r} that says its version")
    versions = [ContractVersion.of_type(type, version) for version in samples]
    problems = [
        f"{type}@{major}: there is no sample of this major"
        for major in handler.chain.majors
        if major not in {version.major for version in versions}
    ]
    read: dict[str, list[Any]] = {}
    for version, payloads in samples.items():
        read[version], listed = [], list(payloads)
        for number, payload in enumerate(listed):
            name = f"{type}@{version} sample {number}"
            before = copy.deepcopy(payload)
            try:
                first, second = (handler.read(payload, f"{type}@{version}") for _ in range(2))
            except Rejected as problem:
                problems.append(f"{name}: {problem.info.message}")
                continue
            read[version].append(first)
            if payload != before:
                problems.append(f"{name}: reading it changes it")
            if first != second:
                problems.append(f"{name}: read twice it gives two things; an upcaster must be pure")
            problems += _not_json(name, handler, payload, f"{type}@{version}")
        if not listed:
            problems.append(f"{type}@{version}: its list of samples is empty")
    if problems:
        raise AssertionError("\n".join(problems))
    return read


def _not_json(name: str, handler: Handler, payload: Any, schema: str) -> list[str]:
    """What pydantic would let pass, and no other language could read: dates, sets and other Python objects."""
    assert handler.chain is not None
    upcast = handler.chain.read(payload, schema)
    try:
        orjson.dumps(upcast, option=orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS)
    except orjson.JSONEncodeError as problem:
        return [f"{name}: the upcast payload is not JSON: {problem}"]
    return []
