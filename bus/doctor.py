"""The doctor: what is wrong with a set-up and how to mend it."""

from __future__ import annotations

import os
import socket
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from bus.broker.connection import Connection
from bus.broker.provisioning import provision
from bus.broker.streams import StreamNames
from bus.broker.survey import agent_queues, stream_sizes, untakeable
from bus.contracts.accepts import Accepts
from bus.delivery.dead_letters import DeadLetters
from bus.delivery.span_status import span_statuses
from bus.registry.readers import live_replicas
from bus.telemetry import sampling
from bus.telemetry.posting import endpoint
from bus.telemetry.selection import misfits
from bus.trust.rules_file import RulesError, read_rules
from bus.trust.rules_status import rules_statuses

OLDEST_SERVER = (2, 11)
FULL_SHARE = 0.8
REACH_S = 2.0


class Grade(StrEnum):
    """How bad a finding is."""

    GOOD = "good"
    NOTICE = "notice"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; `mend` says what to do about it, empty when nothing is to do."""

    grade: Grade
    subject: str
    message: str
    mend: str = ""


async def examine(connection: Connection, *, rules_file: str = "") -> list[Finding]:
    """Looks at the server, the streams, the agents' queues and versions, the rules, the dead letters and the telemetry.

    `rules_file` is what is set for new processes; what runs is asked for its own. Raises BrokerError
    `broker.unavailable` when the broker stops answering meanwhile.
    """
    return [
        _server(connection),
        *await _streams(connection),
        *await _agents(connection),
        *await _versions(connection),
        *_rules_file(rules_file),
        *await _rules(connection),
        *await _dead_letters(connection),
        *_telemetry(),
        *await _spans(connection),
    ]


def _server(connection: Connection) -> Finding:
    version = connection.server_version
    parts = tuple(int(part) for part in version.split("-")[0].split(".")[:2] if part.isdigit())
    if parts < OLDEST_SERVER:
        return Finding(Grade.BAD, "server", f"nats-server {version} at {connection.url}", "upgrade it to 2.11 or newer")
    return Finding(Grade.GOOD, "server", f"nats-server {version} at {connection.url}")


async def _streams(connection: Connection) -> list[Finding]:
    findings = [
        Finding(Grade.NOTICE, "streams", difference, "delete the stream when it is empty, and start again")
        for difference in await provision(connection)
    ]
    for size in await stream_sizes(connection):
        message = f"{size.name}: {size.messages} messages, {size.bytes / 1e6:.1f} MB, {_copies(size.replicas)}"
        if size.max_bytes > 0 and size.bytes > FULL_SHARE * size.max_bytes:
            findings.append(
                Finding(
                    Grade.BAD,
                    "streams",
                    f"{message}, {size.bytes / size.max_bytes:.0%} of its limit",
                    "run more replicas of the agents below, or raise BUS_WORK_MAX_BYTES",
                )
            )
        else:
            findings.append(Finding(Grade.GOOD, "streams", message))
    return findings


async def _agents(connection: Connection) -> list[Finding]:
    findings = []
    for subject, count in (await untakeable(connection)).items():
        findings.append(
            Finding(
                Grade.BAD,
                "agents",
                f"{count} on {subject}, which no agent takes: <lane>.<from>.<type> is missing",
                f"send again to {subject}.normal.<from>.<type>, then remove them: "
                f"nats stream purge {StreamNames.of(connection.settings.namespace).work} --subject {subject}",
            )
        )
    leases = await live_replicas(connection)
    for queue in await agent_queues(connection):
        message = f"{queue.agent}: {queue.waiting} waiting, {queue.in_flight} in flight"
        if queue.replicas:
            # A replica may have two pulls open, and one that was killed keeps its lease for a while: the lower counts.
            count = min(queue.replicas, len(leases.get(queue.agent, ())) or queue.replicas)
            running = f"{count} replica{'s' if count > 1 else ''} running"
            findings.append(Finding(Grade.GOOD, "agents", f"{message}, {running}"))
        elif queue.replicas is None:
            findings.append(
                Finding(
                    Grade.NOTICE,
                    "agents",
                    f"{queue.agent}: {queue.waiting} waiting, and no agent of this name has ever run here",
                    "start it, or check the name that they were sent to; answers to a client that left are harmless",
                )
            )
        elif queue.in_flight:
            findings.append(Finding(Grade.GOOD, "agents", f"{message}, its replicas are busy or gone"))
        elif queue.waiting:
            findings.append(
                Finding(
                    Grade.BAD,
                    "agents",
                    f"{message}, but no replica is running",
                    f"bus run MODULE:{queue.agent}, or check the name that they were sent to",
                )
            )
        else:
            findings.append(Finding(Grade.GOOD, "agents", f"{message}, no replica is running"))
    return findings or [Finding(Grade.NOTICE, "agents", "no agent has ever run here", "bus run MODULE:AGENT")]


async def _versions(connection: Connection) -> list[Finding]:
    """Agents whose live replicas accept different things: an upgrade that has not ended."""
    findings = []
    for agent, replicas in sorted((await live_replicas(connection)).items()):
        kinds = Counter(_told(accepts) for accepts in replicas.values())
        if len(kinds) > 1:
            shown = "; ".join(f"{count} accept {kind}" for kind, count in sorted(kinds.items()))
            findings.append(
                Finding(Grade.NOTICE, "versions", f"{agent}: its replicas differ: {shown}", "finish the upgrade")
            )
    return findings


def _told(accepts: Accepts) -> str:
    majors = [
        type if known is None else f"{type} {'/'.join(map(str, sorted(known)))}"
        for type, known in sorted(accepts.majors.items())
    ]
    return f"{', '.join(majors) or 'nothing'} (envelope {', '.join(sorted(accepts.envelopes))})"


def _rules_file(path: str) -> list[Finding]:
    if not path:
        return []
    try:
        rules = read_rules(Path(path).expanduser().read_bytes())
    except (OSError, RulesError) as problem:
        return [Finding(Grade.BAD, "rules", f"{path}: {problem}; nothing starts with it", f"bus rules check {path}")]
    return [Finding(Grade.GOOD, "rules", f"{path}: {len(rules.rules)} rules")]


async def _rules(connection: Connection) -> list[Finding]:
    """What is in force in those who run: edits that they refused, and rules that differ."""
    told = await rules_statuses(connection)
    findings = [
        Finding(
            Grade.BAD,
            "rules",
            f"{one.service} {one.instance[:8]} keeps its old rules: {one.problem}",
            "mend the file; it is read again by itself",
        )
        for one in told
        if one.problem
    ]
    kinds: dict[str, set[str]] = {}
    for one in told:
        kinds.setdefault(one.digest, set()).add(one.service)
    if len(kinds) > 1:
        shown = "; ".join(
            f"{digest[:8] or 'no rules'}: {', '.join(sorted(services))}" for digest, services in sorted(kinds.items())
        )
        findings.append(
            Finding(Grade.NOTICE, "rules", f"not everybody has the same ({shown})", "give all of them one file")
        )
    elif told and (digest := told[0].digest):
        findings.append(Finding(Grade.GOOD, "rules", f"{digest[:8]} in force in {len(told)} processes"))
    return findings


async def _dead_letters(connection: Connection) -> list[Finding]:
    counts: Counter[tuple[str, str]] = Counter()
    newest: dict[tuple[str, str], int] = {}
    async for dead in DeadLetters(connection).list():
        counts[dead.agent, dead.code] += 1
        newest[dead.agent, dead.code] = dead.id
    if not counts:
        return [Finding(Grade.GOOD, "dead letters", "none")]
    return [
        Finding(
            Grade.NOTICE,
            "dead letters",
            f"{agent}: {count} of {code}",
            f"bus dead show {newest[agent, code]}",
        )
        for (agent, code), count in sorted(counts.items())
    ]


def _telemetry() -> list[Finding]:
    told = [line.rpartition("; ") for line in misfits(os.environ)]
    findings = [Finding(Grade.NOTICE, "telemetry", problem, mend) for problem, _, mend in told]
    return [*findings, _tracing(endpoint())]


def _tracing(url: str | None) -> Finding:
    if url is None:
        off = "off; set OTEL_EXPORTER_OTLP_ENDPOINT (http://127.0.0.1:4318) to export spans"
        return Finding(Grade.GOOD, "tracing", off)
    share = f"{sampling.ratio():.0%} of workflows"
    try:
        with socket.create_connection((urlsplit(url).hostname or "", urlsplit(url).port or 80), REACH_S):
            return Finding(Grade.GOOD, "tracing", f"{share} to {url}")
    except OSError as problem:
        message = f"spans go to {url}, but nobody listens there: {problem.strerror or problem}"
        return Finding(Grade.BAD, "tracing", message, "start the receiver, or mend OTEL_EXPORTER_OTLP_ENDPOINT")


async def _spans(connection: Connection) -> list[Finding]:
    """Who loses spans; services that record none, or lose none, need no line."""
    return [
        Finding(
            Grade.BAD,
            "tracing",
            f"{one.service} {one.instance_id[:8]}: {one.dropped} spans lost, {one.exported} sent, {one.waiting} wait",
            "mend the receiver, or record less: OTEL_TRACES_SAMPLER=traceidratio, OTEL_TRACES_SAMPLER_ARG=0.1",
        )
        for one in await span_statuses(connection)
        if one.dropped
    ]


def _copies(replicas: int) -> str:
    return "1 copy" if replicas == 1 else f"{replicas} copies"
