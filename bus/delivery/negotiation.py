"""Negotiation: a sender that knows what the receiver accepts writes that, or fails before it sends (REG-9)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bus.broker.subjects import BROADCAST
from bus.contracts.accepts import Accepts, agreed
from bus.contracts.upcast import Contracts, Step, cast_along, downcasters
from bus.contracts.version import ContractVersion
from bus.envelope import Envelope
from bus.errors import error
from bus.registry.peers import Peers

SCHEMA = "schema"


class Negotiation:
    """What one sender can write, against what receivers say that they accept."""

    __slots__ = ("_down", "_peers")

    def __init__(self, peers: Peers, contracts: Iterable[Contracts] = ()) -> None:
        self._peers = peers
        self._down: Mapping[tuple[str, int], Step] = downcasters(contracts)

    async def agree(self, envelope: Envelope) -> Envelope:
        """The envelope as the receiver can read it: as it is, or cast down to an older major.

        For a message that names its contract; others, broadcasts, and those to a receiver of which nothing is known
        stay as they are. Raises RegistryError `registry.no_common_version` (details.ours, details.theirs) when no
        live replica accepts any version that can be written, and `tool.validation_failed` from a downcaster.
        """
        if envelope.to == BROADCAST:
            return envelope
        version = ContractVersion.parse(envelope.extensions[SCHEMA])
        if version.type != envelope.type:
            return envelope
        theirs = [peer.accepts for peer in await self._peers.of(envelope.to)]
        if not theirs:
            return envelope
        steps = self._steps(version)
        ours = [version.major, *(step.to_major for step in steps)]
        major = agreed(ours, theirs, version.type)
        if major is None or not any(not one.envelopes or envelope.version in one.envelopes for one in theirs):
            raise _nothing_in_common(envelope, version, ours, theirs)
        if major == version.major:
            return envelope
        # Of the older major, the minor is anybody's guess; a reader takes any minor of a major that it knows.
        written = str(ContractVersion(version.type, major, 0))
        return envelope.replace(
            payload=cast_along(steps[: version.major - major], envelope.payload, str(version)),
            extensions={**envelope.extensions, SCHEMA: written},
        )

    def _steps(self, version: ContractVersion) -> list[Step]:
        steps: list[Step] = []
        major = version.major
        while (step := self._down.get((version.type, major))) is not None:
            steps.append(step)
            major = step.to_major
        return steps


def _nothing_in_common(
    envelope: Envelope, version: ContractVersion, ours: Iterable[int], theirs: Iterable[Accepts]
) -> Exception:
    can = [f"{version.type}@{major}" for major in ours]
    majors = {major for one in theirs for major in one.majors.get(version.type) or ()}
    accepted = [f"{version.type}@{major}" for major in sorted(majors)]
    envelopes = sorted({one for accepts in theirs for one in accepts.envelopes})
    return error(
        "registry.no_common_version",
        f"{envelope.to} accepts {', '.join(accepted) or f'no {version.type}'} in envelopes {', '.join(envelopes)}, and "
        f"this sender writes {', '.join(can)} in envelope {envelope.version}; upgrade {envelope.to}, or register a "
        "downcaster",
        ours={"schemas": can, "envelope": envelope.version},
        theirs={"schemas": accepted, "envelopes": envelopes},
    )
