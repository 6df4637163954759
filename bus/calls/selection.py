"""Selection: which agents a call may go to, or the error that says why none (REG-3, REG-9)."""

from __future__ import annotations

from collections.abc import Iterable

from bus.calls.draft import CallDraft
from bus.calls.index import Offer
from bus.calls.sight import Seen
from bus.envelope import CURRENT
from bus.errors import BusError, error


def suitable(index: Seen, draft: CallDraft) -> list[Offer] | BusError:
    """The offers that fit a draft: the capability, the agent if one is named, a version that both sides know."""
    offers: Iterable[Offer] = index.offers(draft.capability)
    if draft.agent is not None:
        if not index.instances(draft.agent):
            return error(
                "registry.agent_not_found",
                f"no agent {draft.agent!r} is registered; is it running? `bus registry ls` shows who is",
            )
        offers = [offer for offer in offers if offer.agent == draft.agent]
    offers = list(offers)
    if not offers:
        near = index.nearest(draft.capability)
        return error(
            "registry.capability_not_found",
            f"nobody offers {draft.capability!r}"
            + (f"; did you mean {' or '.join(near)}?" if near else "; `bus registry ls` shows what there is"),
            nearest=near,
        )
    fitting = [offer for offer in offers if offer.card.serves(draft.version)]
    if not fitting:
        theirs = sorted({one for offer in offers for one in (offer.card.version, *offer.card.accepts)})
        return error(
            "registry.no_common_version",
            f"{draft.capability} is asked for in version {draft.version}, offered are {', '.join(theirs)}",
            ours=draft.version,
            theirs=theirs,
        )
    readable = [offer for offer in fitting if CURRENT in offer.versions]
    if not readable:
        theirs = sorted({one for offer in fitting for one in offer.versions})
        return error(
            "registry.no_common_version",
            f"we write envelope {CURRENT}; who offers {draft.capability} reads {', '.join(theirs) or 'none'}",
            ours=[CURRENT],
            theirs=theirs,
        )
    return readable
