"""Delegation: on whose behalf a message or call is made. The bus writes the chain, and it can only narrow (SEC-2)."""

from __future__ import annotations

from typing import Any

from bus.envelope import Envelope

ON_BEHALF_OF = "on_behalf_of"


def askers(envelope: Envelope) -> tuple[str, ...]:
    """Everybody who must be allowed what this envelope asks for: its sender, and all on whose behalf it acts."""
    chain = envelope.extensions.get(ON_BEHALF_OF)
    return (envelope.sender,) if not chain else (envelope.sender, *chain)


def chain_of(parent: Envelope) -> list[str]:
    """On whose behalf is acted whoever handles `parent`: those before, then its sender; each once."""
    return list(dict.fromkeys([*parent.extensions.get(ON_BEHALF_OF, ()), parent.sender]))


def lengthened(chain: list[str], given: Any) -> Any:
    """A chain with what a sender gives besides, which can only come to it; what is no list the envelope refuses."""
    return list(dict.fromkeys([*chain, *given])) if isinstance(given, list | tuple) else given
